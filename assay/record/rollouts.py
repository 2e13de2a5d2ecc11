"""StepRecord -> one row per rollout -> the bytes of a Parquet file, and back. pyarrow is imported only when needed.

Every file has the same schema, whatever the reward components are called: `rewards` is a map, not a struct.
Equal records give equal bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.machine import durable
from assay.machine.durable import encodable
from assay.machine.secrets import without_secrets
from assay.types import Group, Rollout, StepRecord

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 1

COLUMNS: dict[str, str] = {
    "step": "Number of the training step.",
    "group": "Number of the group within the step, from 0.",
    "row": "Number of the rollout within the step, from 0, counted over all groups.",
    "prompt_id": "Identity of the prompt.",
    "prompt_text": "Text of the prompt, for readers.",
    "prompt_tokens": "Token ids of the prompt.",
    "text": "Text of the completion, for readers.",
    "tokens": "Sampled token ids of the completion, its EOS included.",
    "sampler_logprobs": "Log-prob of each token as the engine reported it; NaN where it reported none.",
    "old_logprobs": "Log-prob of each token under the policy before the step's first update; null if not in the batch.",
    "new_logprobs": "Log-prob of each token as seen by the last update that trained it; null if not in the batch.",
    "ref_logprobs": "Log-prob of each token under the frozen reference; null without one or if not in the batch.",
    "mask": "Whether each token is in the loss.",
    "rewards": "Reward components by name, before weighting; empty if the reward failed.",
    "reward": "The reward; null if it failed.",
    "error": "Why the reward failed; empty if it did not.",
    "advantage": "The advantage where it is one number for the whole completion, else null.",
    "token_advantages": "The advantage of each token where they differ, else null.",
    "stop": "Why the completion ended: eos or length.",
    "policy_version": "Version of the policy that sampled the completion.",
}


def schema() -> pyarrow.Schema:
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    logprobs = pa.list_(pa.float32())
    types = {
        "step": whole,
        "group": pa.int32(),
        "row": pa.int32(),
        "prompt_id": text,
        "prompt_text": text,
        "prompt_tokens": pa.list_(pa.int32()),
        "text": text,
        "tokens": pa.list_(pa.int32()),
        "sampler_logprobs": logprobs,
        "old_logprobs": logprobs,
        "new_logprobs": logprobs,
        "ref_logprobs": logprobs,
        "mask": pa.list_(pa.bool_()),
        "rewards": pa.map_(text, number),
        "reward": number,
        "error": text,
        "advantage": number,
        "token_advantages": pa.list_(number),
        "stop": text,
        "policy_version": whole,
    }
    return pa.schema([(name, types[name]) for name in COLUMNS], metadata={"assay.schema_version": str(SCHEMA_VERSION)})


def rollout_rows(record: StepRecord, *, keep: str, extremes: int) -> list[dict[str, Any]]:
    """One row per rollout. keep="extremes": only the best and worst few of each group, and all unscored ones."""
    places = _places_in_batch(record)
    rows = []
    first = 0
    for number, group in enumerate(record.groups):
        kept = range(len(group.rollouts)) if keep == "all" else _extremes(group, extremes)
        rows += [_row(record, number, group, index, first + index, places[number][index]) for index in kept]
        first += len(group.rollouts)
    return rows


def to_parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema()), sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one file; raises ValueError with a sentence if this is not a whole file of a known schema."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        durable.require_regular(path)
        with pa.parquet.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        raise ValueError(f"{path} is damaged and cannot be read: {why}") from error
    version = (table.schema.metadata or {}).get(b"assay.schema_version", b"none").decode("ascii", "replace")
    if version != str(SCHEMA_VERSION):
        raise ValueError(f"{path} has schema version {version}, this Assay reads {SCHEMA_VERSION}; use the newer Assay")
    for batch in table.to_batches():
        yield from batch.to_pylist(maps_as_pydicts="strict")


def _row(record: StepRecord, number: int, group: Group, index: int, row: int, place: int | None) -> dict[str, Any]:
    rollout, score = group.rollouts[index], group.scores[index]
    sample = None if place is None else record.samples[place]
    ref_logprobs = record.ref_logprobs
    per_token = sample is not None and isinstance(sample.advantage, tuple)
    return {
        "step": record.step,
        "group": number,
        "row": row,
        "prompt_id": encodable(group.prompt.id),
        "prompt_text": encodable(group.prompt.text),
        "prompt_tokens": group.prompt.tokens,
        "text": encodable(rollout.text),
        "tokens": rollout.tokens,
        "sampler_logprobs": rollout.sampler_logprobs,
        "old_logprobs": None if place is None else record.old_logprobs[place],
        "new_logprobs": None if place is None else record.new_logprobs[place],
        "ref_logprobs": None if place is None or ref_logprobs is None else ref_logprobs[place],
        "mask": [sample is not None and sample.in_loss] * len(rollout.tokens),
        "rewards": sorted((encodable(name), value) for name, value in score.components.items()),
        "reward": score.reward,
        "error": encodable(without_secrets(score.error)),
        "advantage": None if sample is None or per_token else sample.advantage,
        "token_advantages": sample.advantage if sample is not None and per_token else None,
        "stop": str(rollout.stop),
        "policy_version": rollout.policy_version,
    }


def _places_in_batch(record: StepRecord) -> list[list[int | None]]:
    """For each rollout of each group, which sample of the step it became; None if its group was left out."""
    for name in ("old_logprobs", "new_logprobs", "ref_logprobs"):
        logprobs = getattr(record, name)
        if logprobs is not None and len(logprobs) != len(record.samples):
            raise ValueError(f"step {record.step}: {len(record.samples)} samples but {len(logprobs)} {name}")

    def identity(rollout: Rollout) -> tuple[Any, ...]:
        return rollout.prompt_id, rollout.tokens, rollout.policy_version

    waiting: dict[tuple[Any, ...], deque[int]] = {}
    for place, sample in enumerate(record.samples):
        waiting.setdefault(identity(sample.rollout), deque()).append(place)
    places: list[list[int | None]] = []
    for group in record.groups:
        queues = [waiting.get(identity(rollout)) for rollout in group.rollouts]
        places.append([queue.popleft() if queue else None for queue in queues])
    strays = sum(map(len, waiting.values()))
    if strays:
        raise ValueError(f"step {record.step}: {strays} samples belong to no rollout of the recorded groups")
    return places


def _extremes(group: Group, count: int) -> list[int]:
    rewards = {index: reward for index, reward in enumerate(group.rewards) if reward is not None}
    ordered = sorted(rewards, key=lambda index: rewards[index])
    left_out = ordered[count : len(ordered) - count]
    return [index for index in range(len(group.rollouts)) if index not in left_out]

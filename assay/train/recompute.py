"""A run directory and its checkpoints -> record Batches: recorded rollouts, and what the model that sampled them says.

    checkpoint (policy version v) + rollouts sampled by version v --> the record beside the model's plain log-probs
                                                                  --> the trainer's scoring as it is now, in many ways

Only weights that sampled a recorded step can contradict its log-probs, so other checkpoints are not used. The two
batches are kept apart: what the trainer computed then and what it computes now are not one update. They hold what
log-probs need; rewards, groups and texts stay with the batches of whole steps. Nothing is written to the run.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.config import Config
from assay.examine.inputs import RowInputs
from assay.examine.part import stack
from assay.machine.terminal import ProgressLine
from assay.policy.policy import Policy
from assay.record import RunDirectory, RunError, read_metrics
from assay.record.batch import PLAIN_FIELDS, Array, Batch
from assay.record.manifest import REPLACED, checkpoints
from assay.record.rollout_batch import batch_of_rows
from assay.record.rollouts import from_parquet
from assay.record.settings import settings_of
from assay.record.trust import POLICY, load_config, refuse_untrusted
from assay.record.weights import PUBLISHED
from assay.train.evaluate.saved_policy import policy_of
from assay.train.examined_rows import MOST_ROWS, at_most, logprobs_by_row, pack_one, score_otherwise
from assay.train.run import checkpoint
from assay.train.run.changes import refuse_edited
from assay.train.run.checkpoint import Checkpoint, CheckpointError
from assay.train.run.cpu import set_up, settled
from assay.train.run.saver import KINDS
from assay.types import Prompt, Rollout, Sample, StopReason

MOST_CHECKPOINTS = 2  # that are asked: each is loaded, and answers for some twenty forward passes
_BASE = {"tokens", "mask", "lengths", "sampler_versions", "prompt_tokens", "prompt_mask"}  # of the record, in both
_THEN = {"old_logprobs", "sampler_logprobs"}  # of the policy that sampled; new ones are of a later update

Row = Mapping[str, Any]
Report = Callable[[str], None]


class _Unfit(Exception):
    """Why a checkpoint says nothing about any recorded rollout, without its name."""


def recompute_run(run: Path, report: Report, name: str | None = None, *, trust: bool = False) -> list[Batch]:
    """By checkpoint `name`, or by the newest ones that can be used; RunError or ConfigError where there is none.

    Calls `report` with one sentence for each thing that is left out."""
    if run.is_file():
        raise RunError(f"{run} is a file and holds no model to ask again; give a run directory, or leave --recompute")
    RunDirectory.open(run)
    config = load_config(run)
    if not trust:
        refuse_untrusted(run, config, (POLICY,))
    progress = ProgressLine()
    batches: list[Batch] = []
    damaged: list[str] = []
    unfit: list[str] = []
    used = 0
    for saved in _checkpoints(run / "checkpoints", name, damaged):
        refuse_edited(saved, config, run)
        try:
            step, rows = _sampled_by(run, saved, config)
        except _Unfit as error:
            unfit.append(f"{saved.path.name} {error}")
            continue
        batches += _ask_again(saved, config, step, rows, progress, report)
        used += 1
        if used == MOST_CHECKPOINTS:
            break
    if not batches:
        reasons = "; ".join([*damaged, *unfit])
        raise RunError(f"no checkpoint in {run / 'checkpoints'} can be asked about recorded rollouts: {reasons}")
    for sentence in damaged:
        report(f"{sentence}; it was not asked")
    return batches


def _checkpoints(root: Path, name: str | None, damaged: list[str]) -> Iterator[Checkpoint]:
    """The whole ones, newest first; of each other one a sentence goes to `damaged`."""
    names = [path.name for path in reversed(checkpoints(root)) if not path.name.endswith(REPLACED)]
    if name in PUBLISHED:
        raise RunError(f"{name} holds weights without the rollouts that they sampled; name a checkpoint")
    if not names:
        raise RunError(f"{root} holds no checkpoint, so that no model can be asked again; leave --recompute")
    if name is not None and name not in names:
        raise RunError(f"{root} holds no checkpoint {name!r}; it holds {', '.join(names)}")
    for chosen in names if name is None else [name]:
        try:
            yield checkpoint.load(root, chosen, KINDS)
        except CheckpointError as error:
            damaged.append(str(error).removesuffix("; choose another one"))


def _sampled_by(run: Path, saved: Checkpoint, config: Config) -> tuple[int, list[Row]]:
    """(step, rows of whole groups) that the weights of the checkpoint sampled, and scored before the first update.

    A checkpoint stands before a step, inside of it, or behind its last update and before the next step."""
    place, updates = saved.state["place"], config.updates_a_step
    step, version = place["step"] + 1, place["policy_version"]
    for metrics in read_metrics(run).rows:
        file = run / "rollouts" / f"step-{metrics['step']:06d}.parquet"
        scored_by = metrics.get("policy_version", -1) - metrics.get("updates_applied", 0)
        if metrics["step"] not in (step, step + 1) or scored_by != version:
            continue
        try:
            rows = [row for row in from_parquet(file) if row["policy_version"] == version] if file.exists() else []
        except ValueError as error:
            raise _Unfit(f"has nothing to be held against: {error}") from error
        chosen = _whole_groups([row for row in rows if any(row["mask"])])
        if chosen:
            return metrics["step"], chosen
    if 0 < place["update"] < updates:
        raise _Unfit(
            f"was saved inside step {step}, after {place['update']} of its {updates} updates, and its weights never "
            f"sampled: let checkpoint.every be a multiple of {updates}"
        )
    raise _Unfit(f"has policy version {version}, which sampled no recorded rollout that was trained on")


def _whole_groups(rows: Sequence[Row]) -> list[Row]:
    """As many as have room, with the shortest and the longest prompts: padding and positions show between those. Of a
    group that is larger than that its first rows; in the order of the step."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    waiting = sorted(groups.values(), key=lambda group: len(group[0]["prompt_tokens"]))
    chosen: list[Row] = []
    while waiting:
        group = waiting.pop(-1 if len(waiting) % 2 else 0)
        if not chosen or len(chosen) + len(group) <= MOST_ROWS:
            chosen += group[:MOST_ROWS]
    return sorted(chosen, key=lambda row: int(row["row"]))


def _ask_again(
    saved: Checkpoint, config: Config, step: int, rows: Sequence[Row], progress: ProgressLine, report: Report
) -> list[Batch]:
    policy = _policy(saved, config, rows, progress, report)
    name, version = saved.path.name, saved.state["place"]["policy_version"]
    settings = settings_of(config) | {"eos_ids": tuple(policy.eos_ids)}
    whole = batch_of_rows(rows, settings, step=step)
    base: dict[str, Any] = {key: array for key, array in whole.arrays.items() if key in _BASE}
    base |= {**settings, "step": step, "update": 0, "policy_version": version}
    answers: dict[str, Array] = {}
    if config.rollout.top_k:
        report(
            "the tokens that top-k left to choose from are not in the record: the model of a checkpoint cannot be "
            "asked for the recorded log-probs, only whether its scoring depends on padding and batch-mates"
        )
    else:
        answers = _plain(policy, rows, progress.ticker(f"{name}: rows of step {step} asked again"))
    batches = []
    if answers:
        then = {key: array for key, array in whole.arrays.items() if key in _THEN}
        source = f"step {step} of the recorded rollouts, beside the model of {name}"
        batches.append(Batch.of({**base, **then, **answers}, source=source))
    source = f"step {step} of the recorded rollouts, scored now by the model of {name}"
    now = _score_now(policy, config, [_sample(row) for row in rows])
    batches.append(Batch.of({**base, **answers, **now}, source=source))
    return batches


def _policy(saved: Checkpoint, config: Config, rows: Sequence[Row], progress: ProgressLine, report: Report) -> Policy:
    if config.run.device == "cuda" and not torch.cuda.is_available():
        report("the run was trained on a GPU and its model was asked again on a CPU, which rounds differently")
        config = replace(config, run=replace(config.run, device="cpu"))
    config = settled(config)
    set_up(config)
    policy = policy_of(saved, config, progress.ticker("warm start"), report)
    longest = max((_sample(row).prompt for row in rows), key=lambda prompt: len(prompt.tokens))
    return policy.check_shortcuts(longest, config.rollout.max_tokens)


def _sample(row: Row) -> Sample:
    prompt = Prompt(row["prompt_id"], row["prompt_text"], tuple(row["prompt_tokens"]), answer="")
    rollout = Rollout(
        row["prompt_id"],
        tuple(row["tokens"]),
        tuple(row["sampler_logprobs"]),
        StopReason(row["stop"]),
        row["policy_version"],
        row["text"],
    )
    return Sample(prompt, rollout, advantage=0.0, in_loss=True)


def _plain(policy: Policy, rows: Sequence[Row], tick: Callable[[int, int], None]) -> dict[str, Array]:
    plain = []
    for number, row in enumerate(rows, start=1):
        plain.append(policy.plain_logprobs(row["prompt_tokens"], row["tokens"]))
        tick(number, len(rows))
    width = max(len(row["tokens"]) for row in rows)
    return {name: stack(values, width) for name, values in zip(PLAIN_FIELDS, zip(*plain, strict=True), strict=True)}


def _score_now(policy: Policy, config: Config, samples: Sequence[Sample]) -> dict[str, Any]:
    """The trainer's own packing and scoring, in ways that must not matter; and what the model was given."""
    room, score = rows_a_pass(config, samples), partial(logprobs_by_row, policy)
    usual = [pack_one(policy, config, samples, part) for part in at_most(range(len(samples)), room)]
    inputs = RowInputs(policy, range(len(samples)))
    scored: dict[str, dict[int, Tensor]] = {"new_logprobs": {}, "scored_again": {}}
    with inputs.watching():
        for batch in usual:
            scored["new_logprobs"] |= score(batch)
            inputs.take(batch)
    for batch in usual:
        scored["scored_again"] |= score(batch)
    values = {name: [own[row] for row in range(len(samples))] for name, own in scored.items()}
    values |= score_otherwise(policy, config, samples, room, score)
    width = max(len(sample.rollout.tokens) for sample in samples)
    arrays = {name: stack(rows, width) for name, rows in values.items()}
    return {**arrays, **inputs.arrays(), "dropout_modules": inputs.dropout_modules}


def rows_a_pass(config: Config, samples: Sequence[Sample]) -> int:
    """No more rows at a time than the trainer's own micro-batches have: there is memory for those."""
    rollout, optimizer = config.rollout, config.optimizer
    rows = rollout.prompts * rollout.group_size // (optimizer.minibatches * max(optimizer.microbatches, 1))
    if not optimizer.microbatches and optimizer.pass_tokens:
        longest = max(len(sample.prompt.tokens) + len(sample.rollout.tokens) for sample in samples)
        rows = min(rows, optimizer.pass_tokens // longest)
    return max(rows, 1)

"""Dumped rollouts of other trainers --> batches: texts, rewards, advantages, groups, ids where they are given.

Nothing is made up: a field is taken only if every row of a step has it, groups only if the rows show them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from assay.doctor.evidence.logs.series import LogError, as_number
from assay.machine.terminal import quote
from assay.record.batch import Array, Batch, BatchError

Row = Mapping[str, Any]

PROMPT = ("prompt", "input", "query", "question", "prompts", "queries")
COMPLETION = ("completion", "output", "response", "generation", "completions", "responses", "outputs")
REWARD = ("reward", "score", "total_reward", "reward_score", "rewards", "scores")
ADVANTAGE = ("advantage", "advantages")
STEP = ("step", "global_step", "training_step", "rollout_id")
OF_ROLLOUTS = ("uid", "group_id")  # names of a group; what follows may be the number of a question
GROUP = (*OF_ROLLOUTS, "prompt_id", "prompt_idx", "example_id", "group_index")
PROMPT_IDS = ("prompt_ids", "prompt_tokens", "prompt_token_ids", "query_token_ids")
COMPLETION_IDS = ("completion_ids", "response_ids", "response_tokens", "completion_tokens", "response_token_ids")
ANSWER = "answer"  # the true one, or what was read out of the completion
TRUTH = ("gts", "ground_truth", "ground_truths", "gold", "target", "solution", "reference_answer", ANSWER)
MASK = ("completion_mask", "loss_mask", "response_mask", "action_mask", "assistant_mask")
LOGPROBS = {  # one number per id of the completion
    "sampler_logprobs": (
        "completion_logprobs",
        "rollout_logprobs",
        "rollout_log_probs",
        "response_logprobs",
        "sampling_logprobs",
        "sampler_logprobs",
        "inference_logprobs",
    ),
    "old_logprobs": ("old_logprobs", "old_log_probs", "trainer_logprobs", "trainer_log_probs"),
    "ref_logprobs": ("ref_logprobs", "ref_log_probs", "reference_logprobs"),
}
FINISH = ("finish_reason", "finish_reasons", "stop_reason", "stop_condition")
TRUNCATED = ("is_truncated", "truncated")
_ENDED = {"stop": True, "eos": True, "length": False, "max_tokens": False, "max_length": False}
_EXPLAINED = 0.999  # correlation of advantages and the sum of the rewards' parts within groups: it is the reward


def is_rollout(row: Row) -> bool:
    """Whether a row is a text with its answer, or a whole step of them, and not a row of metrics."""
    prompt, completion = _value(row, PROMPT + PROMPT_IDS), _value(row, COMPLETION + COMPLETION_IDS)
    return isinstance(prompt, str | list) and isinstance(completion, str | list)


def spread_out(row: Row) -> list[Row]:
    """Rows of a row of lists with an entry per rollout: open-instruct's traces have one line per step."""
    completions = _value(row, COMPLETION)
    rewards = _value(row, REWARD)
    if not isinstance(completions, list) or not isinstance(rewards, list) or len(rewards) != len(completions):
        return [row]
    lists = {name: value for name, value in row.items() if isinstance(value, list) and len(value) == len(rewards)}
    rest = {name: value for name, value in row.items() if name not in lists}
    return [{**rest, **{name: value[at] for name, value in lists.items()}} for at in range(len(rewards))]


def step_of(row: Row) -> int | None:
    step = as_number(_value(row, STEP))
    return int(step) if step is not None and step >= 0 and step.is_integer() and step < 2**53 else None


def batch_of(rows: Sequence[Row], step: int | None, path: Path, notes: list[str]) -> Batch:
    """Raises LogError where the rows hold nothing that a check could use."""
    source = path.name if step is None else f"step {step} of {path.name}"
    prompts = [_text(_value(row, PROMPT)) for row in rows]
    values: dict[str, Any] = {"step": step}
    rewards_B, advantages_B = _numbers(rows, REWARD), _numbers(rows, ADVANTAGE)
    keys = [_key(row, prompt) for row, prompt in zip(rows, prompts, strict=True)]
    is_stated = all(_value(row, GROUP) is not None for row in rows)
    if is_stated and not any(_value(row, OF_ROLLOUTS) is not None for row in rows):
        finer = [f"{key} {prompt}" for key, prompt in zip(keys, prompts, strict=True)]
        if len(set(finer)) > len(set(keys)):  # a number within one of several sets of questions
            keys, is_stated = finer, False
    groups = _groups(keys, stated=is_stated)
    if groups is None:
        notes.append(f"{source}: its rows do not show which of them were compared with each other")
    if rewards_B is None and groups is not None and advantages_B is not None:
        rewards_B = _sum_of_parts(rows, groups, advantages_B, source, notes)
    values |= {"rewards": rewards_B, "advantages": advantages_B, "group_ids": groups}
    values |= {"finished": _finished_flags(rows), **_ids(rows), **_scale(rewards_B)}
    texts = {"completion": [_text(_value(row, COMPLETION)) for row in rows]} if _have_texts(rows, COMPLETION) else {}
    if _have_texts(rows, PROMPT):
        texts["prompt"] = prompts
    texts |= _truths(rows, prompts)
    if rewards_B is None and advantages_B is None and "tokens" not in values:
        raise LogError(
            f"{path}: its rollouts hold neither a reward nor an advantage nor token ids; dump one of them "
            f"({REWARD[0]}, {ADVANTAGE[0]}, {COMPLETION_IDS[0]})"
        )
    try:
        return Batch.of(values, texts=texts, source=source)
    except BatchError as error:
        raise LogError(f"{path}: {error}") from error


def _value(row: Row, names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _have_texts(rows: Iterable[Row], names: Sequence[str]) -> bool:
    values = [_value(row, names) for row in rows]
    return all(isinstance(value, str) or (isinstance(value, list) and not _are_ids(value)) for value in values)


def _text(value: Any) -> str:
    """A text as it is; of messages their contents."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(message, Mapping) for message in value):
        return "\n".join(_text(message.get("content" if "content" in message else "text")) for message in value)
    return "" if value is None else json.dumps(value, default=str)


def _truths(rows: Sequence[Row], prompts: Sequence[str]) -> dict[str, list[str]]:
    truths = [_truth(_value(row, TRUTH)) for row in rows]
    is_of_rows = len(set(zip(prompts, truths, strict=True))) > len(set(prompts))
    if is_of_rows and any(_value(row, TRUTH[:-1]) is None for row in rows):
        return {}  # what each row answers
    return {"truth": [truth or "" for truth in truths]} if all(truth is not None for truth in truths) else {}


def _truth(value: Any) -> str | None:
    """What the right answer is, where it is one text or one number."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _numbers(rows: Sequence[Row], names: Sequence[str]) -> Array | None:
    """One number per row, NaN where it is null; None if a row has no number. A list of one number counts as it."""
    name = next((name for name in names if all(name in row for row in rows)), None)
    if name is None:
        return None
    found = []
    for row in rows:
        value = row[name]
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        number = float(value) if isinstance(value, bool) else np.nan if value is None else as_number(value)
        if number is None:
            return None
        found.append(number)
    values_B = np.array(found)
    return values_B if np.isfinite(values_B).any() else None


def _key(row: Row, prompt: str) -> str:
    stated = _value(row, GROUP)
    return str(stated) if stated is not None else prompt or json.dumps(_value(row, PROMPT_IDS), default=str)


def _groups(keys: Sequence[str], *, stated: bool) -> Array | None:
    """Rows of one prompt; None where the rows do not show it: a prompt may be drawn twice, rows may be moved about."""
    groups_B: Array = np.unique(np.array(keys), return_inverse=True)[1].reshape(-1)
    sizes = set(np.bincount(groups_B).tolist())
    if stated:
        return groups_B if max(sizes) > 1 else None
    runs = [len(list(run)) for _, run in groupby(keys)]
    is_apart = len(runs) > groups_B.max() + 1  # a prompt's rows do not all stand together
    if len(set(runs)) == 1 and runs[0] > 1:
        # shuffled prompts are equally frequent too: then a shuffle looks the same as a prompt that was drawn twice
        return None if is_apart and len(sizes) == 1 else np.repeat(np.arange(len(runs)), runs[0])
    return groups_B if len(sizes) == 1 and max(sizes) > 1 else None


def _sum_of_parts(
    rows: Sequence[Row], groups_B: Array, advantages_B: Array, source: str, notes: list[str]
) -> Array | None:
    """TRL dumps the parts of a reward, not the reward: their sum is it if it explains the advantages."""
    taken = {*PROMPT, *COMPLETION, *ADVANTAGE, *STEP, *GROUP, *PROMPT_IDS, *COMPLETION_IDS, *TRUTH}
    names = [name for name in rows[0] if name not in taken and _numbers(rows, (name,)) is not None]
    parts = [part for name in names if (part := _numbers(rows, (name,))) is not None]
    if not parts:
        return None
    total_B: Array = np.sum(parts, axis=0)
    if _is_explained(advantages_B, total_B, groups_B) or any(
        _is_explained(advantages_B, total_B, blocks_B) for blocks_B in _blocks(groups_B)
    ):
        return total_B
    notes.append(f"{source}: the reward is not dumped, and the sum of {', '.join(map(quote, names[:4]))} is not it")
    return None


def _is_explained(advantages_B: Array, total_B: Array, groups_B: Array) -> bool:
    related = [
        np.corrcoef(total_B[inside_B], advantages_B[inside_B])[0, 1]
        for group in np.unique(groups_B)
        if np.ptp(total_B[inside_B := groups_B == group]) > 0 and np.ptp(advantages_B[inside_B]) > 0
    ]
    return bool(related) and min(related) > _EXPLAINED


def _blocks(groups_B: Array) -> Iterable[Array]:
    """What a trainer that mixes up the rows of its groups takes for them: neighbours, every n-th row, or all rows.

    A reward that explains advantages in this way is the reward all the same, and the groups are the fault."""
    sizes = set(np.bincount(groups_B).tolist())
    if len(sizes) == 1 and 1 < (size := sizes.pop()) < len(groups_B):
        rows_B = np.arange(len(groups_B))
        yield rows_B // size
        yield rows_B % (len(groups_B) // size)
        yield np.zeros_like(rows_B)


def _scale(rewards_B: Array | None) -> dict[str, float]:
    """By convention 1 is the best reward, if some row has it and none has more: then a solved step is healthy."""
    known_N = np.empty(0) if rewards_B is None else rewards_B[np.isfinite(rewards_B)]
    if not len(known_N) or known_N.max() != 1.0 or known_N.min() < -1.0:
        return {}
    return {"max_reward": 1.0, "min_reward": -1.0 if known_N.min() < 0.0 else 0.0}


def _finished_flags(rows: Sequence[Row]) -> Array | None:
    reasons = [_ENDED.get(str(_value(row, FINISH)).lower()) for row in rows]
    if all(reason is not None for reason in reasons):
        return np.array(reasons, dtype=bool)
    cut = [_value(row, TRUNCATED) for row in rows]
    return ~np.array(cut, dtype=bool) if all(isinstance(flag, bool) for flag in cut) else None


def _ids(rows: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    completions = _lists_of_ids(rows, (*COMPLETION_IDS, *COMPLETION))
    prompts = _lists_of_ids(rows, (*PROMPT_IDS, *PROMPT))
    if completions is not None:
        found["tokens"], _ = _pad(completions, lambda row, width: row + [0] * (width - len(row)))
        found["lengths"] = np.array([len(row) for row in completions])
        found |= _by_token(rows, found["lengths"])
    if prompts is not None:
        found["prompt_tokens"], width = _pad(prompts, lambda row, width: [0] * (width - len(row)) + row)
        lengths_B = np.array([len(row) for row in prompts])
        found["prompt_mask"] = np.arange(width) >= width - lengths_B[:, None]
    return found


def _by_token(rows: Sequence[Row], lengths_B: Array) -> dict[str, Any]:
    """The mask and the log-probs of the completions, where each row has as many as it has ids."""
    found: dict[str, Any] = {}
    for name, names in {"mask": MASK, **LOGPROBS}.items():
        lists = [_value(row, names) for row in rows]
        if not all(map(_are_numbers, lists)) or [len(numbers) for numbers in lists] != lengths_B.tolist():
            continue
        padded, _ = _pad(lists, lambda row, width: row + [0] * (width - len(row)), np.float64)
        found[name] = padded != 0 if name == "mask" else padded
    if "mask" in found:
        found["forced"] = _between(found["mask"], lengths_B)
    return found


def _between(mask_BT: Array, lengths_B: Array) -> Array:
    """Tokens out of the loss with tokens in the loss on both sides: the output of a tool, which nobody sampled."""
    before_BT = np.logical_or.accumulate(mask_BT, axis=1)
    after_BT = np.logical_or.accumulate(mask_BT[:, ::-1], axis=1)[:, ::-1]
    inside_BT = np.arange(mask_BT.shape[1]) < lengths_B[:, None]
    return np.asarray(~mask_BT & before_BT & after_BT & inside_BT)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(number) in (int, float, bool) for number in value)


def _lists_of_ids(rows: Sequence[Row], names: Sequence[str]) -> list[list[int]] | None:
    lists = [_value(row, names) for row in rows]
    return lists if all(map(_are_ids, lists)) else None


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int and 0 <= token < 2**31 for token in value)


def _pad(
    lists: Sequence[list[Any]], pad: Callable[[list[Any], int], list[Any]], dtype: type = np.int64
) -> tuple[Array, int]:
    width = max(map(len, lists))
    return np.array([pad(row, width) for row in lists], dtype=dtype), width

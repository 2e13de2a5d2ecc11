"""The recorded rollouts of one step -> Batch: what the doctor sees of a step that was not examined.

Rows are those of assay/record/rollouts.py. Nothing here imports torch.

Shape legend: B completions, T completion tokens, P prompt tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from assay.record.batch import Array, Batch, BatchError

Row = Mapping[str, Any]

_LOGPROBS = ("old_logprobs", "new_logprobs", "ref_logprobs", "sampler_logprobs")
_OF_ONE_UPDATE = ("loss", "policy_loss", "kl_loss", "gradient_norm", "update_norm")  # else they are means over several


def batch_of_rows(
    rows: Sequence[Row],
    settings: Mapping[str, Any],
    *,
    step: int,
    source: str = "",
    numbers: Mapping[str, Any] | None = None,
) -> Batch:
    """The rows of one step that were in its batch; `numbers` is the step's row of metrics, if there is one.

    Where only the extremes of a group were recorded, whatever compares the rows of a group is left out.
    """
    trained = [row for row in rows if row["old_logprobs"] is not None and row["new_logprobs"] is not None]
    values: dict[str, Any] = {**settings, "step": step}
    updates = settings.get("updates_per_rollout")
    if updates is not None:
        values["update"] = max(int(updates) - 1, 0)
    complete = has_whole_groups(rows, settings.get("group_size"))
    if complete and updates is not None:
        values |= _numbers(numbers or {}, int(updates))
    if not trained:
        return Batch.of(values, source=source)
    values |= _arrays(trained, int(settings.get("pad_id", 0)))
    if complete:
        values |= _fields_of_groups(trained)
    eos_ids = {row["tokens"][-1] for row in rows if row["stop"] == "eos"}
    if eos_ids:
        values["eos_ids"] = tuple(sorted(eos_ids))
    texts = {
        "prompt": [row["prompt_text"] for row in trained],
        "completion": [row["text"] for row in trained],
        "prompt_id": [row["prompt_id"] for row in trained],
    }
    return Batch.of(values, texts=texts, source=source)


def has_whole_groups(rows: Sequence[Row], group_size: int | None) -> bool:
    """Whether no rollout of a group was left out of the record: `row` counts all of them."""
    if [row["row"] for row in rows] != list(range(len(rows))):
        return False
    sizes = Counter(row["group"] for row in rows)
    return group_size is None or all(size == group_size for size in sizes.values())


def _arrays(rows: Sequence[Row], pad: int) -> dict[str, Any]:
    lengths_B = np.array([len(row["tokens"]) for row in rows])
    inside_BT = np.arange(lengths_B.max()) < lengths_B[:, None]
    prompt_lengths_B = np.array([len(row["prompt_tokens"]) for row in rows])
    longest = int(prompt_lengths_B.max())
    prompt_mask_BP = np.arange(longest) >= longest - prompt_lengths_B[:, None]  # padded on the left
    tokens_BT = _pad_lists(rows, "tokens", inside_BT, np.int64, pad)
    return {
        "tokens": tokens_BT,
        "sampled_tokens": tokens_BT,
        "mask": _pad_lists(rows, "mask", inside_BT, np.bool_, False),
        "lengths": lengths_B,
        "finished": np.array([row["stop"] != "length" for row in rows]),
        "sampler_versions": np.array([row["policy_version"] for row in rows]),
        "prompt_tokens": _pad_lists(rows, "prompt_tokens", prompt_mask_BP, np.int64, pad),
        "prompt_mask": prompt_mask_BP,
        **{
            name: _pad_lists(rows, name, inside_BT, np.float64, 0.0)
            for name in _LOGPROBS
            if all(row[name] is not None for row in rows)
        },
    }


def _fields_of_groups(rows: Sequence[Row]) -> dict[str, Any]:
    """What is only right with all rows of each group."""
    per_token = [row["token_advantages"] is not None for row in rows]
    advantages: Array
    if any(per_token):
        lengths_B = np.array([len(row["tokens"]) for row in rows])
        spread = [
            {"advantage": row["token_advantages"] if own else [_or_nan(row["advantage"])] * len(row["tokens"])}
            for row, own in zip(rows, per_token, strict=True)
        ]
        inside_BT = np.arange(lengths_B.max()) < lengths_B[:, None]
        advantages = _pad_lists(spread, "advantage", inside_BT, np.float64, 0.0)
    else:
        advantages = np.array([_or_nan(row["advantage"]) for row in rows])
    return {
        "rewards": np.array([_or_nan(row["reward"]) for row in rows]),
        "group_ids": np.array([row["group"] for row in rows]),
        "advantages": advantages,
        "process_rewards": any(per_token),
    }


def _pad_lists(rows: Iterable[Row], name: str, inside_BN: Array, dtype: type[np.generic], padding: Any) -> Array:
    """The lists of a column (one per row) in an array: each row's where `inside` has room for it."""
    lists = [row[name] for row in rows]
    if [len(numbers) for numbers in lists] != inside_BN.sum(axis=1).tolist():
        raise BatchError(f"{name} of a recorded rollout is not one number for each of its tokens; its file is damaged")
    values_BN = np.full(inside_BN.shape, padding, dtype=dtype)
    values_BN[inside_BN] = np.fromiter(chain.from_iterable(lists), dtype=dtype, count=int(inside_BN.sum()))
    return values_BN


def _numbers(metrics: Mapping[str, Any], updates: int) -> dict[str, Any]:
    known = {name: value for name, value in metrics.items() if value is not None}
    found = {name: known[name] for name in _OF_ONE_UPDATE if updates == 1 and name in known}
    if "policy_version" in known and known.get("updates_applied") in ({0, 1} if updates == 1 else {updates}):
        found["policy_version"] = known["policy_version"] - (known["updates_applied"] if updates == 1 else 1)
    return found


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value

"""Comparing two sets of log-probs of the same tokens: how far apart, where, and whether rounding explains it.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.doctor.evidence import Batch
from assay.record.batch import Array
from assay.record.metrics import LARGEST_FLOAT32, MEAN_LOW_PRECISION
from assay.verdict import Missing

DRAWN_BY_MODEL = 1.0  # standard errors of the mean of model - old


@dataclass(frozen=True, slots=True)
class Gap:
    """|one - other| over the tokens where both are finite; `row` and `token` say where it is largest."""

    mean: float
    largest: float
    row: int
    token: int
    tokens: int

    def is_rounding(self, dtype: str | None) -> bool:
        if dtype == "float32":
            return self.largest <= LARGEST_FLOAT32
        return self.mean <= MEAN_LOW_PRECISION


def loss_tokens(batch: Batch) -> Array:
    """Tokens in the loss that were really sampled; a mask that runs into the padding is another illness."""
    (mask_BT,) = batch.need("mask")
    return mask_BT if batch.get("lengths") is None else mask_BT & completion_places(batch)


def rows_of_others(batch: Batch) -> Array:
    """Rows whose tokens are not the sampled ones, where both are known: a fault at their tokens has that cause."""
    tokens_BT, sampled_BT = batch.get("tokens"), batch.get("sampled_tokens")
    if tokens_BT is None or sampled_BT is None or tokens_BT.shape != sampled_BT.shape:
        rows = next((len(values) for values in (tokens_BT, batch.get("mask")) if values is not None), 0)
        return np.zeros(rows, dtype=bool)
    other_BT = (tokens_BT != sampled_BT) & completion_places(batch)
    forced_BT = batch.get("forced")
    return np.asarray((other_BT if forced_BT is None else other_BT & ~forced_BT).any(axis=1))


def not_looked_at(batch: Batch) -> str:
    """The end of a sentence about all rows, where a check passes over those with other tokens."""
    others = int(rows_of_others(batch).sum())
    return f" (not looked at: {others} rows whose tokens are not the sampled ones)" if others else ""


def both_finite(batch: Batch, *names: str) -> Array:
    """Loss tokens at which all of these are finite. Raises Missing where there is none: NaN is not a log-prob.

    Where a dump has no mask, the tokens of the completion."""
    is_dump = batch.get("mask") is None and batch.get("tokens") is not None and batch.get("lengths") is not None
    inside_BT = completion_places(batch) if is_dump else loss_tokens(batch)
    for name, values_BT in zip(names, batch.need(*names), strict=True):
        inside_BT = inside_BT & np.isfinite(values_BT)
        if not inside_BT.any():
            raise Missing(f"{name} of any loss token")
    return inside_BT


def gap_between(batch: Batch, one: str, other: str) -> Gap:
    inside_BT = both_finite(batch, one, other)
    one_BT, other_BT = batch.need(one, other)
    distance_BT = np.abs(np.where(inside_BT, one_BT, 0.0) - np.where(inside_BT, other_BT, 0.0))
    row, token = np.unravel_index(int(np.argmax(distance_BT)), distance_BT.shape)
    count = int(inside_BT.sum())
    return Gap(float(distance_BT.sum() / count), float(distance_BT.max()), int(row), int(token), count)


def mean_distance(first_BT: Array, second_BT: Array, judged_BT: Array, fewest: int = 1) -> float:
    """Mean |difference| over the judged tokens at which both are finite; NaN where these are fewer than `fewest`."""
    both_BT = judged_BT & np.isfinite(first_BT) & np.isfinite(second_BT)
    return float(np.abs(first_BT - second_BT)[both_BT].mean()) if both_BT.sum() >= fewest else float("nan")


def versions_behind(batch: Batch) -> int | None:
    """Versions between the oldest weights that sampled and those before the rollout's first update; None if unknown."""
    versions_B, version = batch.get("sampler_versions"), batch.numbers.get("policy_version")
    if versions_B is None or not len(versions_B) or version is None:
        return None
    return int(version - batch.numbers.get("update", 0) - versions_B.min())


def may_be_sampled_by_old(batch: Batch) -> bool:
    """Whether the tokens may be draws of old and not of the model that is trained: old then belongs to the weights that
    sampled, which may be older ones by design.

    For draws of old the mean of model - old is minus a KL, for draws of the model it is a KL. The model's own log-probs
    must be known, and new must be these: dropout in the pass of new looks the same. Our own engine says whose draws
    they are."""
    names = ("new_logprobs", "old_logprobs", "plain_logprobs")
    if any(batch.get(name) is None for name in names) or batch.numbers.get("update", 0) != 0:
        return False
    if batch.settings.get("trainer") == "assay":
        return False
    try:
        inside_BT = both_finite(batch, *names)
        if not gap_between(batch, "new_logprobs", "plain_logprobs").is_rounding(batch.settings.get("dtype")):
            return False
    except Missing:
        return False
    old_BT, plain_BT = batch.need("old_logprobs", "plain_logprobs")
    difference_N = (plain_BT - old_BT)[inside_BT]
    error = float(difference_N.std()) / max(len(difference_N), 1) ** 0.5
    return bool(difference_N.mean() < DRAWN_BY_MODEL * error)


def logprobs_before_update(batch: Batch, *, of_the_start: bool = False) -> str:
    """The field with the trainer's log-probs of the policy as it was before the rollout's first update: old, or new in
    that update where a trainer has no old. `of_the_start`: new only in the first step, where no weights are older."""
    is_first = batch.numbers.get("update") == 0 and (batch.step == 1 or not of_the_start)
    has_old = batch.get("old_logprobs") is not None or batch.get("new_logprobs") is None
    return "old_logprobs" if has_old or not is_first else "new_logprobs"


def row_spans(batch: Batch) -> tuple[Array, Array]:
    """First column of each completion, and the column after its last: as recorded, else up to the last loss token.

    Both are 0 where nothing says. `tokens` may be prompt + completion, with lengths of the completions alone.
    """
    lengths_B, mask_BT = batch.get("lengths"), batch.get("mask")
    if lengths_B is None:
        (mask_BT,) = batch.need("mask")
        return np.zeros(len(mask_BT), dtype=np.int64), _loss_span(mask_BT)[1]
    starts_B = np.zeros(len(lengths_B), dtype=np.int64)
    if mask_BT is not None:
        first_B, end_B = _loss_span(mask_BT)
        # no more loss tokens than were sampled, and yet some lie beyond: lengths do not count from the first column
        moved_B = (end_B > lengths_B) & (mask_BT.sum(axis=1) <= lengths_B)
        if moved_B.any() and (behind_B := _behind_prompts(batch)) is not None:
            return behind_B, np.clip(behind_B + lengths_B, 0, mask_BT.shape[1])
        if moved_B.any():
            return np.where(end_B > 0, first_B, 0), end_B
        if mask_BT.any():
            return starts_B, np.clip(lengths_B, 0, mask_BT.shape[1])
    behind_B = _behind_prompts(batch)
    if behind_B is not None:
        starts_B = behind_B
    tokens_BT = batch.get("tokens")
    tokens_BT = mask_BT if tokens_BT is None else tokens_BT
    width = int((starts_B + lengths_B).max(initial=0)) if tokens_BT is None else tokens_BT.shape[1]
    return starts_B, np.clip(starts_B + lengths_B, 0, width)


def row_lengths(batch: Batch) -> Array:
    """The column after each row's last completion token; 0 where nothing says."""
    return row_spans(batch)[1]


def completion_places(batch: Batch) -> Array:
    """Columns of `mask` or `tokens` that hold the completion."""
    start_B, end_B = row_spans(batch)
    width = batch.arrays["mask" if "mask" in batch.arrays else "tokens"].shape[1]
    columns_T = np.arange(width)
    return np.asarray((columns_T >= start_B[:, None]) & (columns_T < end_B[:, None]))


def _loss_span(mask_BT: Array) -> tuple[Array, Array]:
    if not mask_BT.shape[1]:
        return np.zeros(len(mask_BT), dtype=np.int64), np.zeros(len(mask_BT), dtype=np.int64)
    last_B = mask_BT.shape[1] - np.argmax(mask_BT[:, ::-1], axis=1)
    return np.argmax(mask_BT, axis=1), np.where(mask_BT.any(axis=1), last_B, 0)


def _behind_prompts(batch: Batch) -> Array | None:
    """The column after the prompt of each row, if every row of `tokens` begins with its prompt; else None. Of several
    that fit, the one behind which all loss tokens stand."""
    tokens_BT, prompts_BP, real_BP = (batch.get(name) for name in ("tokens", "prompt_tokens", "prompt_mask"))
    if tokens_BT is None or prompts_BP is None or real_BP is None or tokens_BT.shape[1] < prompts_BP.shape[1]:
        return None
    fitting = [
        behind_B
        for dropped in range(min(2, prompts_BP.shape[1]))  # log-probs have no place for the first token
        for behind in (_behind_padding, _behind_each)
        if (behind_B := behind(tokens_BT, prompts_BP[:, dropped:], real_BP[:, dropped:])) is not None
    ]
    mask_BT, lengths_B = batch.get("mask"), batch.get("lengths")
    if mask_BT is not None and lengths_B is not None:
        first_B, end_B = _loss_span(mask_BT)
        for behind_B in fitting:
            if ((end_B == 0) | ((first_B >= behind_B) & (end_B <= behind_B + lengths_B))).all():
                return behind_B
    return fitting[0] if fitting else None


def _behind_padding(tokens_BT: Array, prompts_BP: Array, real_BP: Array) -> Array | None:
    """Where all completions begin in one column, behind prompts that are padded to it."""
    width = prompts_BP.shape[1]
    same_BP = (tokens_BT[:, :width] == prompts_BP) | ~real_BP
    fits = len(same_BP) and same_BP.all() and real_BP.any()
    return np.full(len(tokens_BT), width, dtype=np.int64) if fits else None


def _behind_each(tokens_BT: Array, prompts_BP: Array, real_BP: Array) -> Array | None:
    """Where prompts of different lengths stand at the left of their rows, each followed by its completion."""
    prompts = [ids[real] for ids, real in zip(prompts_BP, real_BP, strict=True)]
    lengths_B = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    begins = all(np.array_equal(row[: len(prompt)], prompt) for row, prompt in zip(tokens_BT, prompts, strict=True))
    return lengths_B if begins and len(lengths_B) and lengths_B.min() > 0 else None

"""Rewards and groups -> advantages, in every way that is known to be meant or known to be a bug.

Shape legend: B rows, P groups, G rows of the widest group (the rest is NaN).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assay.doctor.arrays import plain, tensor
from assay.doctor.recompute.match import Array, Match, Variant, nearest, tolerance
from assay.grpo import BASELINES, REWARD_LIMIT, SCALES, STDS, group_advantages
from assay.record.batch import Batch
from assay.verdict import Fact, Missing

EPSILON = 1e-4  # where the settings name none
EPSILONS = (0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)  # those in use; which one is never worth a finding
CONSTANT = 1e-5  # relative spread within a row below which it has one advantage
FLOAT32 = 6e-8  # half the distance of a float32 to the next, relative
FLOAT64 = 1e-12  # the last digits of a float64, and those of a short sum, relative
STATED = ("baseline", "std", "scale")  # the settings that fix the formula


def row_advantages(batch: Batch) -> Array | None:
    """One advantage per row, NaN for a row without loss tokens; None if they differ between the tokens of a row."""
    (advantages,) = batch.need("advantages")
    if advantages.ndim == 1:
        return advantages
    mask_BT = batch.get("mask")
    inside_BT = np.ones(advantages.shape, dtype=bool) if mask_BT is None else mask_BT
    if not inside_BT.any():
        raise Missing("a row with loss tokens")
    highest_B = np.where(inside_BT, advantages, -np.inf).max(axis=1)
    lowest_B = np.where(inside_BT, advantages, np.inf).min(axis=1)
    empty_B = ~inside_BT.any(axis=1)
    spread_B = np.where(empty_B, 0.0, highest_B) - np.where(empty_B, 0.0, lowest_B)
    if (spread_B > CONSTANT * max(float(np.abs(advantages[inside_BT]).max()), 1e-12)).any():
        return None
    return np.where(empty_B, np.nan, highest_B)


def other_kind(batch: Batch) -> str:
    """Why the formulas of group advantages do not apply; "" if they do."""
    if batch.settings.get("process_rewards"):
        return "process rewards: the advantages of a row differ between its tokens"
    if batch.get("values") is not None or batch.get("returns") is not None:
        return "a critic gives the baseline"
    if batch.settings.get("combine") == "gdpo":
        return "GDPO normalises each reward by itself, and the batch holds their sum alone"
    if row_advantages(batch) is None:
        return "the advantages of a row differ between its tokens"
    return ""


@dataclass(frozen=True)
class Centring:
    """Means of advantages, of each group and of all rows, and how far from 0 a mean may be by rounding."""

    mean_P: Array
    is_off_P: Array
    rows_P: tuple[Array, ...]
    batch_mean: float
    limit: float

    @property
    def batch_is_centred(self) -> bool:
        return abs(self.batch_mean) <= self.limit

    @property
    def worst(self) -> Fact:
        """The mean that is furthest from 0."""
        at = int(np.argmax(np.abs(self.mean_P)))
        return Fact(
            "largest mean advantage of a group", float(self.mean_P[at]), self.limit, row=int(self.rows_P[at][0])
        )


def centring(batch: Batch) -> Centring:
    """Of groups whose rewards vary, where they are known: an equal group can only be off by rounding."""
    advantages_B = row_advantages(batch)
    if advantages_B is None:
        raise Missing("one advantage per row")
    rewards_B = batch.get("rewards")
    groups = [rows[np.isfinite(advantages_B[rows])] for rows in groups_of(batch)]
    groups = [rows for rows in groups if len(rows) > 1]
    if not groups:
        raise Missing("a group of two rows with finite advantages")
    lost = 0.0
    if rewards_B is not None:
        varying = [rows for rows in groups if np.ptp(_scored_rewards(rewards_B[rows])) > 0]
        groups = varying or groups
        lost = _lost_digits(rewards_B, groups)
    known_B = advantages_B[np.isfinite(advantages_B)]
    limit = (5 * tolerance(batch, known_B) + lost) * float(np.abs(known_B).max())
    mean_P = np.array([advantages_B[rows].mean() for rows in groups])
    return Centring(mean_P, np.abs(mean_P) > limit, tuple(groups), float(known_B.mean()), limit)


def _scored_rewards(rewards: Array) -> Array:
    scored = rewards[~np.isnan(rewards)]
    return scored if scored.size else np.zeros(1)


def groups_of(batch: Batch) -> list[Array]:
    """Row numbers of each group, in order of appearance. A prompt drawn several times makes several groups."""
    (ids_B,) = batch.need("group_ids")
    size = batch.settings.get("group_size")
    _, first_P, number_B = np.unique(ids_B, return_index=True, return_inverse=True)
    rows_P = np.split(np.argsort(number_B, kind="stable"), np.cumsum(np.bincount(number_B))[:-1])
    groups = []
    for rows in (rows_P[group] for group in np.argsort(first_P).tolist()):
        if isinstance(size, int) and size > 1 and len(rows) > size and len(rows) % size == 0:
            groups += list(rows.reshape(-1, size))
        else:
            groups.append(rows)
    return groups


def has_whole_groups(batch: Batch) -> bool:
    """Whether every group is known to be complete: part of a group has another mean than the group."""
    sizes = {len(rows) for rows in groups_of(batch)}
    return sizes == {batch.settings.get("group_size", max(sizes))}


def grouped(values_B: Array, groups: list[Array]) -> Array:
    values_PG = np.full((len(groups), max(map(len, groups))), np.nan)
    values_PG[_places(groups)] = values_B[np.concatenate(groups)]
    return values_PG


def ungrouped(values_PG: Array, groups: list[Array], rows: int) -> Array:
    values_B = np.zeros(rows)
    values_B[np.concatenate(groups)] = values_PG[_places(groups)]
    return values_B


def _places(groups: list[Array]) -> tuple[Array, Array]:
    """(group, place in it) of each row, group after group."""
    sizes_P = np.array([len(rows) for rows in groups])
    begin_P = np.cumsum(sizes_P) - sizes_P
    return np.repeat(np.arange(len(groups)), sizes_P), np.arange(sizes_P.sum()) - np.repeat(begin_P, sizes_P)


def advantages(batch: Batch) -> Array:
    """As configured; settings that are not there count as the defaults of assay."""
    rewards_B, groups = _rewards(batch)
    chosen = {name: batch.settings[name] for name in STATED if name in batch.settings}
    return _advantages(rewards_B, groups, epsilon=batch.settings.get("advantage_epsilon", EPSILON), **chosen)


def nearest_advantages(batch: Batch) -> Match:
    """Raises Missing without rewards, groups of two, or one advantage per row."""
    recorded_B = row_advantages(batch)
    if recorded_B is None:
        raise Missing("one advantage per row")
    rewards_B, groups = _rewards(batch)
    known_B = ~np.isnan(recorded_B)
    stated = {name: batch.settings[name] for name in (*STATED, "combine") if name in batch.settings}
    limit = tolerance(batch, recorded_B[known_B]) + _lost_digits(rewards_B, groups)

    def among(variants: list[Variant]) -> Match:
        known = [replace(variant, values=variant.values[known_B]) for variant in variants]
        return nearest(recorded_B[known_B], known, stated, tolerance=limit)

    # nearly every batch is what its settings say: then the many other ways need not be computed
    said = _formulas(rewards_B, groups, (batch.settings.get("advantage_epsilon", EPSILON),), stated)
    if said and (match := among(said)).is_configured:
        return match
    return among(_variants(batch, rewards_B, groups, recorded_B))


def _rewards(batch: Batch) -> tuple[Array, list[Array]]:
    (rewards_B,) = batch.need("rewards")
    groups = groups_of(batch)
    for name, choices in zip(STATED, (BASELINES, STDS, SCALES), strict=True):
        if batch.settings.get(name, choices[0]) not in choices:
            raise Missing(f"a {name} that is known here ({', '.join(choices)})")
    if max(map(len, groups), default=0) < 2:
        raise Missing("a group of two rows")
    if (np.abs(rewards_B) > REWARD_LIMIT).any():
        raise Missing("finite rewards")
    return rewards_B, groups


def _lost_digits(rewards_B: Array, groups: list[Array]) -> float:
    """What float32 loses when close rewards far from 0 are subtracted: 1000.001 - 1000 keeps three digits."""
    rewards_PG, largest = grouped(rewards_B, groups), float(np.abs(_scored_rewards(rewards_B)).max())
    # three times 0.1 has a mean beside 0.1: by that alone a group does not vary
    varies_P = np.fmax.reduce(rewards_PG, axis=1) - np.fmin.reduce(rewards_PG, axis=1) > FLOAT64 * largest
    if not varies_P.any():
        return 8 * FLOAT32 * largest
    return 8 * FLOAT32 * largest / float(_std(rewards_PG[varies_P], "population").min())


def _advantages(rewards_B: Array, groups: list[Array], **how: Any) -> Array:
    return ungrouped(plain(group_advantages(tensor(grouped(rewards_B, groups)), **how)), groups, len(rewards_B))


def _variants(batch: Batch, rewards_B: Array, groups: list[Array], recorded_B: Array) -> list[Variant]:
    epsilon = batch.settings.get("advantage_epsilon", EPSILON)
    return [
        *_formulas(rewards_B, groups, (epsilon, *EPSILONS)),
        *_common_divisor(rewards_B, groups, recorded_B),
        *_post_processed(batch, _advantages(rewards_B, groups, epsilon=epsilon, **_chosen(batch)), recorded_B),
        *_bugs(batch, rewards_B, groups, epsilon),
    ]


def _chosen(batch: Batch) -> dict[str, Any]:
    return {name: batch.settings[name] for name in STATED if name in batch.settings}


def _formulas(
    rewards_B: Array, groups: list[Array], epsilons: tuple[float, ...], stated: Mapping[str, Any] | None = None
) -> list[Variant]:
    """All that grpo.group_advantages computes, or of it what is stated; the first epsilon, the configured one, needs
    no name."""
    found = []
    for baseline, mean in zip(BASELINES, ("group mean", "mean of the others"), strict=True):
        for std in STDS:
            for scale in SCALES:
                if std == "none" and scale == "batch":
                    continue  # the same numbers
                divided = f"the {std} std of the {scale}"
                scales: tuple[str, ...] = (scale,)
                if std == "none":
                    divided, scales = f"no std ({'Dr. GRPO' if baseline == 'mean' else 'RLOO'})", SCALES
                how = {"baseline": baseline, "std": std, "scale": scale}
                options = {"baseline": (baseline,), "std": (std,), "scale": scales}
                if any(name in options and value not in options[name] for name, value in (stated or {}).items()):
                    continue
                for number, epsilon in enumerate(epsilons if std != "none" else epsilons[:1]):
                    values = _advantages(rewards_B, groups, epsilon=epsilon, **how)
                    added = f" + {epsilon:g}" if number else ""
                    found.append(Variant(f"reward - {mean}, over {divided}{added}", values, False, options))
    return found


def _post_processed(batch: Batch, configured_B: Array, recorded_B: Array) -> list[Variant]:
    """The configured ones, bounded or weighed by length afterwards; no setting says so."""
    known_B = np.isfinite(recorded_B) & np.isfinite(configured_B)
    bound = float(np.abs(recorded_B[known_B]).max(initial=0.0))
    unstated: dict[str, tuple[Any, ...]] = dict.fromkeys(STATED, ())
    found = []
    if 0 < bound < np.abs(configured_B[known_B]).max(initial=0.0):
        clipped_B = configured_B.clip(-bound, bound)
        found.append(Variant(f"the configured ones, clipped to +-{bound:.4g}", clipped_B, False, unstated))
    mask_BT = batch.get("mask")
    if mask_BT is not None:
        by_length_B = configured_B / np.maximum(mask_BT.sum(axis=1), 1)
        squares = float((by_length_B[known_B] ** 2).sum())
        factor = float((by_length_B[known_B] * recorded_B[known_B]).sum()) / squares if squares else 0.0
        if factor > 0:
            found.append(
                Variant("the configured ones over the length of the row", factor * by_length_B, False, unstated)
            )
    return found


def _common_divisor(rewards_B: Array, groups: list[Array], recorded_B: Array) -> list[Variant]:
    """Divided by one number for all: the std of a larger batch, of which these rows are a part."""
    centred_B = _advantages(rewards_B, groups, std="none")
    known_B = np.isfinite(recorded_B)
    squares = float((centred_B[known_B] ** 2).sum())
    factor = float((centred_B[known_B] * recorded_B[known_B]).sum()) / squares if squares else 0.0
    options = {"std": ("sample", "population"), "scale": ("batch",)}
    name = f"reward - group mean, times {factor:.4g} for all rows"
    return [Variant(name, factor * centred_B, False, options)] if factor > 0 else []


def _bugs(batch: Batch, rewards_B: Array, groups: list[Array], epsilon: float) -> list[Variant]:
    rewards_PG = grouped(rewards_B, groups)
    with np.errstate(all="ignore"):
        mean_P1 = np.nansum(rewards_PG, axis=1, keepdims=True) / (~np.isnan(rewards_PG)).sum(axis=1, keepdims=True)
    chosen = {name: batch.settings[name] for name in STATED if name in batch.settings}
    configured_B = _advantages(rewards_B, groups, epsilon=epsilon, **chosen)
    everybody = [np.arange(len(rewards_B))]

    def back(values_PG: Array) -> Array:
        return np.nan_to_num(ungrouped(values_PG, groups, len(rewards_B)), nan=0.0)

    found = [Variant("the configured ones with the sign flipped", -configured_B, True)]
    for kind in ("sample", "population"):
        std_P1 = _std(rewards_PG, kind)
        batch_std = _std(rewards_B[None, :], kind)[0, 0]
        scored_B = _advantages(rewards_B, groups, std=kind, epsilon=epsilon)
        twice_B = _advantages(scored_B, everybody, std=kind, epsilon=epsilon)
        with np.errstate(all="ignore"):
            found += [
                Variant(
                    f"reward - mean of the whole batch, over its {kind} std",
                    _advantages(rewards_B, everybody, std=kind, epsilon=epsilon),
                    True,
                ),
                Variant(
                    f"reward over the {kind} std of the group, not centred", back(rewards_PG / (std_P1 + epsilon)), True
                ),
                Variant(
                    f"reward over the {kind} std of the batch, not centred",
                    np.nan_to_num(rewards_B / (batch_std + epsilon)),
                    True,
                ),
                Variant(
                    f"reward - mean / ({kind} std + epsilon): parentheses are missing around reward - mean",
                    back(rewards_PG - mean_P1 / (std_P1 + epsilon)),
                    True,
                ),
                Variant(
                    f"(reward - group mean) over the {kind} variance in the place of the std",
                    back((rewards_PG - mean_P1) / (std_P1**2 + epsilon)),
                    True,
                ),
                Variant(
                    f"normalised twice, by the {kind} std of the group and again over the batch",
                    twice_B,
                    batch.settings.get("combine") == "sum",  # else it may be GDPO of one reward
                    {"combine": ("gdpo",)},
                ),
            ]
    found += [
        Variant("reward - mean of the whole batch", _advantages(rewards_B, everybody, std="none"), True),
        Variant("the rewards themselves, not centred", np.nan_to_num(rewards_B), True),
        Variant("reward - reward of the first rollout of the group", back(rewards_PG - rewards_PG[:, :1]), True),
    ]
    for name, other in _other_groups(len(rewards_B), groups):
        found.append(Variant(name, _advantages(rewards_B, other, epsilon=epsilon, **chosen), True))
    if np.isnan(rewards_B).any():
        zeros_B = _advantages(np.nan_to_num(rewards_B), groups, epsilon=epsilon, **chosen)
        found.append(Variant("those of unscored rollouts counted as reward 0", zeros_B, True))
    return found


def _other_groups(rows: int, groups: list[Array]) -> list[tuple[str, list[Array]]]:
    """Groups as a reshape in the wrong order would cut them; only where all have one size."""
    size = len(groups[0])
    if len(groups) < 2 or any(len(group) != size for group in groups):
        return []
    order = np.concatenate(groups)
    return [
        ("those of groups that start one row too late", list(np.roll(order, -1).reshape(-1, size))),
        ("those of every so-manieth row (repeat where repeat_interleave is meant)", list(order.reshape(size, -1).T)),
    ]


def _std(values_PG: Array, kind: str) -> Array:
    counts_P1 = (~np.isnan(values_PG)).sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        mean_P1 = np.nansum(values_PG, axis=1, keepdims=True) / counts_P1
        squares_P1 = np.nansum((values_PG - mean_P1) ** 2, axis=1, keepdims=True)
        return np.asarray(np.sqrt(squares_P1 / (counts_P1 - (1 if kind == "sample" else 0))))

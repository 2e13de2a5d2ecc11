"""Rewards and groups -> advantages, in every way that is known to be meant or known to be a bug.

A way to compute them is an entry of a table: what grpo.group_advantages can be asked for (`_formulas`), and MISTAKES.
Shape legend: B rows, P groups, G rows of the widest group (the rest is NaN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from assay.doctor.recompute.arrays import plain, tensor
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
class GroupMeans:
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


def centring(batch: Batch) -> GroupMeans:
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
        lost = _lost_digits(Rewards(rewards_B, groups, {}))
    known_B = advantages_B[np.isfinite(advantages_B)]
    limit = (5 * tolerance(batch, known_B) + lost) * float(np.abs(known_B).max())
    mean_P = np.array([advantages_B[rows].mean() for rows in groups])
    return GroupMeans(mean_P, np.abs(mean_P) > limit, tuple(groups), float(known_B.mean()), limit)


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
    return bool(sizes) and sizes == {batch.settings.get("group_size", max(sizes))}


@dataclass(frozen=True)
class Rewards:
    """Rewards in groups, and how the settings say that advantages are made of them."""

    rewards_B: Array
    groups: list[Array]
    how: Mapping[str, Any]  # baseline, std and scale as far as they are stated, and epsilon

    @classmethod
    def of(cls, batch: Batch) -> Rewards:
        """Raises Missing without rewards or groups of two, and for settings that are not known here."""
        (rewards_B,) = batch.need("rewards")
        groups = groups_of(batch)
        for name, choices in zip(STATED, (BASELINES, STDS, SCALES), strict=True):
            if batch.settings.get(name, choices[0]) not in choices:
                raise Missing(f"a {name} that is known here ({', '.join(choices)})")
        if max(map(len, groups), default=0) < 2:
            raise Missing("a group of two rows")
        if (np.abs(rewards_B) > REWARD_LIMIT).any():
            raise Missing("finite rewards")
        stated = {name: batch.settings[name] for name in STATED if name in batch.settings}
        return cls(rewards_B, groups, {**stated, "epsilon": batch.settings.get("advantage_epsilon", EPSILON)})

    @property
    def epsilon(self) -> float:
        return float(self.how["epsilon"])

    @property
    def as_one_group(self) -> Rewards:
        return replace(self, groups=[np.arange(len(self.rewards_B))])

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """(group, place in it) of each row, group after group."""
        sizes_P = np.array([len(rows) for rows in self.groups])
        begin_P = np.cumsum(sizes_P) - sizes_P
        return np.repeat(np.arange(len(self.groups)), sizes_P), np.arange(sizes_P.sum()) - np.repeat(begin_P, sizes_P)

    @cached_property
    def by_group(self) -> Array:
        rewards_PG = np.full((len(self.groups), max(map(len, self.groups))), np.nan)
        rewards_PG[self._places] = self.rewards_B[np.concatenate(self.groups)]
        return rewards_PG

    def in_rows(self, values_PG: Array) -> Array:
        values_B = np.zeros(len(self.rewards_B))
        values_B[np.concatenate(self.groups)] = values_PG[self._places]
        return values_B

    def advantages(self, **how: Any) -> Array:
        """By grpo.group_advantages, as configured except for `how`."""
        return self.in_rows(plain(group_advantages(tensor(self.by_group), **{**self.how, **how})))

    @property
    def means(self) -> Array:
        return plain(tensor(self.by_group).nanmean(dim=1, keepdim=True))

    def stds(self, kind: str) -> Array:
        """Written out for the mistakes below: grpo.group_advantages centres before it divides."""
        scored_P1 = (~np.isnan(self.by_group)).sum(axis=1, keepdims=True)
        squares_P1 = tensor(self.by_group - self.means).square().nansum(dim=1, keepdim=True)
        return plain((squares_P1 / (scored_P1 - int(kind == "sample"))).sqrt())


def advantages(batch: Batch) -> Array:
    """As configured; settings that are not there count as the defaults of assay."""
    return Rewards.of(batch).advantages()


def nearest_advantages(batch: Batch) -> Match:
    """Raises Missing without rewards, groups of two, or one advantage per row."""
    recorded_B = row_advantages(batch)
    if recorded_B is None:
        raise Missing("one advantage per row")
    rewards = Rewards.of(batch)
    known_B = ~np.isnan(recorded_B)
    stated = {name: batch.settings[name] for name in (*STATED, "combine") if name in batch.settings}
    limit = tolerance(batch, recorded_B[known_B]) + _lost_digits(rewards)

    def among(variants: list[Variant]) -> Match:
        known = [replace(variant, values=variant.values[known_B]) for variant in variants]
        return nearest(recorded_B[known_B], known, stated, tolerance=limit)

    # nearly every batch is what its settings say: then the many other ways need not be computed
    said = _formulas(rewards, (rewards.epsilon,), stated)
    if said and (match := among(said)).is_configured:
        return match
    return among(
        [
            *_formulas(rewards, (rewards.epsilon, *EPSILONS), {}),
            *_fitted(rewards, recorded_B, batch.get("mask")),
            *_mistakes(rewards, is_sum=batch.settings.get("combine") == "sum"),
        ]
    )


def _lost_digits(rewards: Rewards) -> float:
    """What float32 loses when close rewards far from 0 are subtracted: 1000.001 - 1000 keeps three digits."""
    rewards_PG, largest = rewards.by_group, float(np.abs(_scored_rewards(rewards.rewards_B)).max())
    # three times 0.1 has a mean beside 0.1: by that alone a group does not vary
    varies_P = np.fmax.reduce(rewards_PG, axis=1) - np.fmin.reduce(rewards_PG, axis=1) > FLOAT64 * largest
    if not varies_P.any():
        return 8 * FLOAT32 * largest
    return 8 * FLOAT32 * largest / float(rewards.stds("population")[varies_P].min())


def _formulas(rewards: Rewards, epsilons: tuple[float, ...], stated: Mapping[str, Any]) -> list[Variant]:
    """All that grpo.group_advantages computes and `stated` allows; the first epsilon, the configured one, needs no
    name."""
    found = []
    means = dict(zip(BASELINES, ("group mean", "mean of the others"), strict=True))
    for baseline, std, scale in product(BASELINES, STDS, SCALES):
        if std == "none" and scale == "batch":
            continue  # the same numbers as with the scale of the group
        options = {"baseline": (baseline,), "std": (std,), "scale": SCALES if std == "none" else (scale,)}
        if any(value not in options.get(name, (value,)) for name, value in stated.items()):
            continue
        divided = f"the {std} std of the {scale}"
        if std == "none":
            divided = f"no std ({'Dr. GRPO' if baseline == 'mean' else 'RLOO'})"
        for number, epsilon in enumerate(epsilons if std != "none" else epsilons[:1]):
            values_B = rewards.advantages(baseline=baseline, std=std, scale=scale, epsilon=epsilon)
            added = f" + {epsilon:g}" if number else ""
            found.append(Variant(f"reward - {means[baseline]}, over {divided}{added}", values_B, False, options))
    return found


def _fitted(rewards: Rewards, recorded_B: Array, mask_BT: Array | None) -> list[Variant]:
    """What may be meant though no setting says so: with a factor or a bound that is read off the recorded ones."""
    configured_B, centred_B = rewards.advantages(), rewards.advantages(baseline="mean", std="none", scale="group")
    unstated: dict[str, tuple[Any, ...]] = dict.fromkeys(STATED, ())
    found = []
    if (factor := _best_factor(centred_B, recorded_B)) > 0:  # the std of a larger batch, of which these rows are a part
        name = f"reward - group mean, times {factor:.4g} for all rows"
        options = {"std": ("sample", "population"), "scale": ("batch",)}
        found.append(Variant(name, factor * centred_B, False, options))
    known_B = np.isfinite(recorded_B) & np.isfinite(configured_B)
    bound = float(np.abs(recorded_B[known_B]).max(initial=0.0))
    if 0 < bound < np.abs(configured_B[known_B]).max(initial=0.0):
        clipped_B = configured_B.clip(-bound, bound)
        found.append(Variant(f"the configured ones, clipped to +-{bound:.4g}", clipped_B, False, unstated))
    if mask_BT is not None:
        by_length_B = configured_B / np.maximum(mask_BT.sum(axis=1), 1)
        if (factor := _best_factor(by_length_B, recorded_B)) > 0:
            name = "the configured ones over the length of the row"
            found.append(Variant(name, factor * by_length_B, False, unstated))
    return found


def _best_factor(values_B: Array, recorded_B: Array) -> float:
    """The factor that brings the values nearest to the recorded ones, by least squares; 0 where there is none."""
    known_B = np.isfinite(recorded_B) & np.isfinite(values_B)
    squares = float((values_B[known_B] ** 2).sum())
    return float((values_B[known_B] * recorded_B[known_B]).sum()) / squares if squares else 0.0


MISTAKES: dict[str, Callable[[Rewards], Array]] = {
    "the configured ones with the sign flipped": lambda rewards: -rewards.advantages(),
    "reward - mean of the whole batch": lambda rewards: rewards.as_one_group.advantages(
        baseline="mean", std="none", scale="group"
    ),
    "the rewards themselves, not centred": lambda rewards: rewards.rewards_B,
    "reward - reward of the first rollout of the group": lambda rewards: rewards.in_rows(
        rewards.by_group - rewards.by_group[:, :1]
    ),
    "those of unscored rollouts counted as reward 0": lambda rewards: replace(
        rewards, rewards_B=np.nan_to_num(rewards.rewards_B)
    ).advantages(),
}
MISTAKES_WITH_STD: dict[str, Callable[[Rewards, str], Array]] = {  # "sample" or "population"
    "reward - mean of the whole batch, over its {std} std": lambda rewards, std: rewards.as_one_group.advantages(
        baseline="mean", std=std, scale="group"
    ),
    "reward over the {std} std of the group, not centred": lambda rewards, std: rewards.in_rows(
        rewards.by_group / (rewards.stds(std) + rewards.epsilon)
    ),
    "reward over the {std} std of the batch, not centred": lambda rewards, std: (
        rewards.rewards_B / (rewards.as_one_group.stds(std)[0, 0] + rewards.epsilon)
    ),
    "reward - mean / ({std} std + epsilon): parentheses are missing around reward - mean": lambda rewards, std: (
        rewards.in_rows(rewards.by_group - rewards.means / (rewards.stds(std) + rewards.epsilon))
    ),
    "(reward - group mean) over the {std} variance in the place of the std": lambda rewards, std: rewards.in_rows(
        (rewards.by_group - rewards.means) / (rewards.stds(std) ** 2 + rewards.epsilon)
    ),
}


def _mistakes(rewards: Rewards, *, is_sum: bool) -> list[Variant]:
    """`is_sum`: the settings say that the parts of the reward are added up before they are normalised."""
    with np.errstate(all="ignore"):
        found = [(name, values_of(rewards)) for name, values_of in MISTAKES.items()]
        for std in ("sample", "population"):
            found += [(name.format(std=std), values_of(rewards, std)) for name, values_of in MISTAKES_WITH_STD.items()]
    found += [(name, replace(rewards, groups=groups).advantages()) for name, groups in _other_groups(rewards.groups)]
    variants = [Variant(name, np.nan_to_num(values_B), True) for name, values_B in found]
    for std in ("sample", "population"):
        usual = {"baseline": "mean", "std": std, "scale": "group"}
        scored = replace(rewards, rewards_B=rewards.advantages(**usual))
        name = f"normalised twice, by the {std} std of the group and again over the batch"
        # where no sum is stated it may be GDPO of one reward
        twice_B = scored.as_one_group.advantages(**usual)
        variants.append(Variant(name, twice_B, is_sum, {"combine": ("gdpo",)}))
    return variants


def _other_groups(groups: list[Array]) -> list[tuple[str, list[Array]]]:
    """Groups as a reshape in the wrong order would cut them; only where all have one size."""
    size = len(groups[0])
    if len(groups) < 2 or any(len(group) != size for group in groups):
        return []
    order = np.concatenate(groups)
    return [
        ("those of groups that start one row too late", list(np.roll(order, -1).reshape(-1, size))),
        ("those of every so-manieth row (repeat where repeat_interleave is meant)", list(order.reshape(size, -1).T)),
    ]

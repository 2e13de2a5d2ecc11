"""
## What it checks
That dividing by the std of a group is harmless: every advantage is finite, every group has more than one completion,
completions with equal rewards have advantage 0, and no advantage is larger than arithmetic allows, (G-1) / sqrt(G) for
the std with n-1 and sqrt(G-1) for the std with n. A reward that is called by reward-check must not give answers of one
group rewards that differ by a hair only.

## Why it hurts
The std of equal rewards is 0, or a rounding residue of 1e-9. Divided by it, nothing becomes NaN or an advantage in the
thousands, and one group without any information outweighs the rest of the batch. A group of one has no std at all: its
advantage is NaN, or always 0. Of rewards that differ by 0.01, a hair's breadth of format counts as much as being right.

## How to fix it
Use groups of two or more, add an epsilon far above rounding, and leave groups of equal rewards at advantage 0. Round a
reward to what matters, or set advantage.std = none.

    # before: equal rewards are divided by a residue
    advantages = (rewards - mean) / std
    # after
    advantages = (rewards - mean) / (std + 1e-4)
    advantages = advantages.where(rewards.amax(1, True) > rewards.amin(1, True), 0.0)

## When it is wrong
The bound holds for advantages divided by the std of their own group; others (no std, RLOO, std of the batch) are only
checked for the rest. Groups of one are meant in algorithms with another baseline, which the settings then do not call
a group's mean. A price for length that explains the small differences of a reward is not blamed.
"""

from __future__ import annotations

import ast
import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence, RewardTrial
from assay.doctor.evidence.reward import Role
from assay.doctor.examples import healthy_batch, healthy_curves
from assay.doctor.examples.reward import reward_evidence
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.rewards import EXAMPLES, TOLERANCE, by_problem, reward_groups
from assay.doctor.facts.trend import reward_range
from assay.doctor.recompute.advantages import (
    centring,
    groups_of,
    has_whole_groups,
    nearest_advantages,
    other_kind,
    row_advantages,
)
from assay.doctor.recompute.consistent import consistent
from assay.programs.edits import Spot
from assay.programs.facts.advantages.advantages import Scaling, is_advantage, is_guarded, is_small, plain, scalings
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import peel
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    likely,
    not_applicable,
    not_enough_data,
)

LARGEST = 50.0  # of an advantage in a log: those of a group of a thousand are at most 32
EQUAL_REWARDS = 1e-6  # relative spread of rewards that are the same number except for float32 rounding
ON_A_LINE = 0.999  # correlation of advantages with their rewards in one group, by any known formula
VISIBLE = 0.1  # an advantage of this size moves the policy; equal rewards leave at most a rounding error of 0
BLOWN_UP = 10.0  # times the bound: where groups are not centred, a wrong baseline alone may exceed it a little
NEARLY = 1e-3  # relative: advantages that are one number except for rounding
SLACK = 1.01  # over the bound: bfloat16 rounds by half a percent
SMALLEST_STD = 0.02  # of a group's rewards: what is below is noise, and dividing by it makes +-1 of it
FEW_GROUPS = 0.1  # of the groups with such a std: fewer are an accident
LENGTH_EXPLAINS = 0.9  # correlation with length from which on small differences are a length penalty, not noise
_ROUND = "Round the reward to what matters, or set advantage.std = none: noise this small becomes advantages of +-1."


def check_batch(batch: Batch) -> Verdict:
    batch.need("advantages")
    if (verdict := _not_finite(batch)) is not None:
        return verdict
    if reason := other_kind(batch):
        return not_applicable(reason)
    advantages_B = row_advantages(batch)
    assert advantages_B is not None
    groups = groups_of(batch)
    if not np.isfinite(advantages_B).any():
        return not_enough_data("a finite advantage")
    if all(len(rows) == 1 for rows in groups):
        return _groups_of_one(batch, advantages_B)
    if verdict := _equal_rewards(batch, advantages_B, groups) or _beyond_the_bound(batch, advantages_B, groups):
        return verdict
    largest = float(np.nanmax(np.abs(advantages_B)))
    return healthy("the advantages are finite and of a size that a std allows", Fact("largest |A|", largest))


def check_source(program: Program) -> Iterator[Verdict]:
    for scaling in scalings(program):
        if not is_advantage(program, scaling.value) or scaling.is_variance:
            continue
        single = _single(scaling)
        if single is not None:
            yield likely(
                f"{scaling.spread.shown} is the std of groups of one completion: it is NaN, or 0 if it is biased",
                places=(scaling.value.place, single.place),
                why=_why(scaling),
            )
        elif scaling.epsilon is None and not is_guarded(program, scaling):
            yield finding(
                f"{scaling.value.place.text} divides by {scaling.spread.shown} with nothing that keeps it from 0"
                f"{_misplaced(scaling)}: a group of equal rewards gives NaN",
                confidence=Confidence.POSSIBLE if _is_whitening(program, scaling) else Confidence.LIKELY,
                places=(scaling.value.place,),
                why=_why(scaling),
            )
        else:
            yield healthy("the divisor of the advantages is kept from 0", places=(scaling.value.place,))


def check_reward(trial: RewardTrial) -> Verdict:
    groups, origin = reward_groups(trial)
    if not groups:
        return not_enough_data("no group with two scored answers")
    tiny = [std for std in map(statistics.stdev, groups) if TOLERANCE < std < SMALLEST_STD]
    message = f"{len(tiny)} of {len(groups)} groups of {origin} have a std between 0 and {SMALLEST_STD:g}"
    if len(tiny) > FEW_GROUPS * len(groups):
        confidence = Confidence.LIKELY if trial.groups else Confidence.PROVEN
        return finding(message, confidence=confidence, fix=_ROUND, examples=(f"smallest std {min(tiny):.2g}",))
    for problem, scores in by_problem(trial.of(Role.WRONG, Role.EMPTY, Role.NONSENSE)).items():
        rewards, lengths = [score.reward or 0.0 for score in scores], [len(score.probe.text) for score in scores]
        spread = max(rewards) - min(rewards)
        if len(rewards) < 3 or not TOLERANCE < spread < SMALLEST_STD:
            continue
        if max(lengths) > min(lengths) and abs(statistics.correlation(lengths, rewards)) >= LENGTH_EXPLAINS:
            continue
        return finding(
            f"answers that are all wrong get rewards that differ, by {spread:.2g} only",
            confidence=Confidence.POSSIBLE,
            fix=f"In a group without a right answer, as in problem {problem + 1}, this is all there is to learn. "
            f"{_ROUND}",
            examples=tuple(map(str, scores[:EXAMPLES])),
        )
    return healthy(message)


def _not_finite(batch: Batch) -> Verdict | None:
    (advantages,) = batch.need("advantages")
    mask_BT = batch.get("mask")
    bad = ~np.isfinite(advantages)
    if mask_BT is not None:
        bad &= mask_BT if bad.ndim == 2 else mask_BT.any(axis=1)
    if not bad.any():
        return None
    row = int(np.argwhere(bad)[0][0])
    return finding(
        f"{int(bad.sum())} of {bad.size} advantages are NaN or infinite",
        Fact("advantage", str(advantages[tuple(np.argwhere(bad)[0])]), None, batch.step, row),
        severity=Severity.FATAL,
    )


def _groups_of_one(batch: Batch, advantages_B: Array) -> Verdict:
    if batch.settings.get("group_size", 1) > 1:
        return not_applicable("the batch holds one row of each group")
    stated = batch.settings.get("group_size") == 1 and "baseline" in batch.settings
    if not stated and np.nanmax(np.abs(advantages_B)) > 0:
        return not_applicable("groups of one row, whose advantages come from another baseline")
    return finding(
        f"all of {len(advantages_B)} groups have one completion: there is nobody to compare it with",
        Fact("completions per group", 1, 2, batch.step),
        # a part of a batch may hold one row of each group
        confidence=Confidence.PROVEN if stated else Confidence.POSSIBLE,
        severity=Severity.FATAL if stated else Severity.HARMFUL,
    )


def _equal_rewards(batch: Batch, advantages_B: Array, groups: list[Array]) -> Verdict | None:
    """Only where the other groups are centred: else the formula is another one."""
    rewards_B = batch.get("rewards")
    in_reward = batch.settings.get("kl_coef") and batch.settings.get("kl_placement") != "loss"
    if rewards_B is None or not has_whole_groups(batch) or in_reward:
        return None  # equal rewards may differ from the rest of their group, or by a KL that is taken off later
    varied = may_be_others = False
    worst: tuple[float, int] = (0.0, 0)
    for rows in groups:
        scored = rewards_B[rows][np.isfinite(rewards_B[rows])]
        if len(scored) < 2:
            continue
        if np.ptp(scored) > EQUAL_REWARDS * max(float(np.abs(scored).max()), 1e-3):
            varied = True
            continue
        # one mean and one std give equal rewards the same advantage: these may come from other rewards
        may_be_others |= np.ptp(scored) == 0 and not _are_equal(advantages_B[rows])
        at = int(rows[np.nanargmax(np.nan_to_num(np.abs(advantages_B[rows])))])
        worst = max(worst, (abs(float(advantages_B[at])), at))
    if not varied or worst[0] <= VISIBLE or centring(batch).is_off_P.any():
        return None
    if not all(_follow_rewards(advantages_B[rows], rewards_B[rows]) for rows in groups):
        return None  # they come from other rewards: not the std, but stale or misplaced rewards
    # raw rewards, or those of another baseline, may be centred in the other groups by chance
    stated = {"baseline", "group_size", "kl_coef"} <= batch.settings.keys()
    return finding(
        f"completions with equal rewards have advantages of up to {worst[0]:.3g}: the std of nothing is divided by",
        Fact("largest |A| where rewards are equal", worst[0], VISIBLE, batch.step, worst[1]),
        confidence=Confidence.POSSIBLE if not stated else Confidence.LIKELY if may_be_others else Confidence.PROVEN,
    )


def _are_equal(advantages_G: Array) -> bool:
    finite_G = advantages_G[np.isfinite(advantages_G)]
    return len(finite_G) < 2 or float(np.ptp(finite_G)) <= NEARLY * float(np.abs(finite_G).max())


def _follow_rewards(advantages_G: Array, rewards_G: Array) -> bool:
    """Whether the advantages of a group rise with its rewards along a line; a group of equal rewards shows nothing."""
    scored_G = np.isfinite(advantages_G) & np.isfinite(rewards_G)
    a_N, r_N = advantages_G[scored_G], rewards_G[scored_G]
    if len(r_N) < 2 or np.ptp(r_N) <= EQUAL_REWARDS * max(float(np.abs(r_N).max()), 1e-3):
        return True
    return bool(np.ptp(a_N) > 0 and np.corrcoef(a_N, r_N)[0, 1] > ON_A_LINE)


def _beyond_the_bound(batch: Batch, advantages_B: Array, groups: list[Array]) -> Verdict | None:
    std, scale, baseline = (batch.settings.get(name) for name in ("std", "scale", "baseline"))
    if std not in ("sample", "population") or scale != "group" or baseline is None:
        return None
    rewards_B = batch.get("rewards")
    is_centred = not centring(batch).is_off_P.any()
    if rewards_B is None and not is_centred:
        return None  # another formula, and no rewards that show which
    worst: tuple[float, float, int, float] = (1.0, 0.0, 0, 0.0)
    some_within = rewards_B is None
    for rows in groups:
        size = len(rows) if rewards_B is None else int(np.isfinite(rewards_B[rows]).sum())
        known = advantages_B[rows][np.isfinite(advantages_B[rows])]
        if size < 2 or not known.size:
            continue
        bound = (size - 1) / math.sqrt(size) if std == "sample" else math.sqrt(size - 1)
        if batch.settings.get("baseline") == "leave_one_out":
            bound *= size / (size - 1)
        largest = float(np.abs(known).max())
        worst = max(worst, (largest / (bound * SLACK), largest, int(rows[0]), bound))
        some_within |= 0 < largest <= bound * SLACK
    excess, largest, row, bound = worst
    if excess <= (1.0 if is_centred else BLOWN_UP) or (rewards_B is not None and nearest_advantages(batch).fits):
        return None  # within the bound, or a known formula of another size: see formula
    if not some_within:
        return None  # a factor on all groups: no std is that of nothing in each of them
    return finding(
        f"an advantage of {largest:.3g} is larger than a {std} std of its group allows ({bound:.3g})",
        Fact("largest |A| of the group", largest, bound, batch.step, row),
    )


def _is_whitening(program: Program, scaling: Scaling) -> bool:
    """One std of all advantages of a batch, in an environment with rewards at each step: it is hardly ever 0."""
    if program.of("generate", "multinomial"):
        return False
    if "dim" in scaling.spread.arguments:
        return False
    named = any("adv" in name.lower() for name in (*scaling.base.names, scaling.base.name))
    return named or scaling.divisor.op == "phi"  # carried from batch to batch: a moving average


def _misplaced(scaling: Scaling) -> str:
    """Where an epsilon stands that does not help."""

    def has_epsilon(value: Value) -> bool:
        return value.op == "add" and any(map(is_small, value.inputs))

    if any(map(has_epsilon, scaling.value.users)):
        return " (the epsilon is added to the quotient)"
    if has_epsilon(plain(scaling.numerator)):
        return " (the epsilon is added to the numerator)"
    if scaling.spread.input is not None and has_epsilon(plain(scaling.spread.input)):
        return " (the epsilon is added to the rewards, which does not change their std)"
    return ""


def _single(scaling: Scaling) -> Value | None:
    """The shape that makes groups of one: view(-1, 1)."""
    shaped = peel(scaling.spread.input, ("cast", "clone", "detach"))
    if shaped is None or shaped.op not in ("view", "reshape") or scaling.spread.setting("dim") not in (1, -1):
        return None
    sizes = [size for name, size in shaped.arguments.items() if name.isdigit()]
    last = sizes[-1] if sizes else None
    return last if last is not None and last.constant == 1 and len(sizes) > 1 else None


def _why(scaling: Scaling) -> tuple[str, ...]:
    return (
        f"line {scaling.value.place.line}: {scaling.base.shown} is divided by its own spread",
        f"line {scaling.spread.place.line}: {scaling.spread.shown} is that spread",
    )


def check_curves(curves: Curves) -> Verdict:
    """Of a log that holds the smallest and the largest advantage of a step."""
    lowest_N, highest_N = curves.need("advantage_min", "advantage_max")
    size_N = np.maximum(np.abs(lowest_N), np.abs(highest_N))
    worst, best = reward_range(curves)
    limit = max(LARGEST, 10 * (best - worst)) if np.isfinite(best - worst) else LARGEST
    far_N, at = size_N > limit, int(np.nanargmax(size_N))
    fact = Fact("largest advantage", float(size_N[at]), limit, curves.step_at(at))
    if far_N.sum() < 2:
        return healthy("no advantage is larger than a std of sound size makes it", fact)
    return finding(f"advantages are larger than {limit:g} in {far_N.sum()} of {len(curves)} steps", fact)


def _example(*, residue: float, difference: float) -> Evidence:
    """Advantages of +-`residue` for four rewards that are equal except for rounding, and a reward whose answers differ
    by `difference`."""
    batch = healthy_batch()
    advantages_B, rewards_B = batch.arrays["advantages"].copy(), batch.arrays["rewards"].copy()
    advantages_B[4:8] = (residue, -residue, residue, -residue)
    rewards_B[4:8] += 1e-10 * np.sign(advantages_B[4:8])
    trial = reward_evidence(groups=((0.0, difference),) * 4).reward
    curves = healthy_curves(advantage_min=-2.0, advantage_max=200 * residue)
    return Evidence((consistent(batch, advantages=advantages_B, rewards=rewards_B),), curves, reward=trial)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """x / std --> x / (std + 1e-4); rsqrt(variance) --> rsqrt(variance + 1e-8)."""
    if isinstance(spot.node, ast.BinOp) and isinstance(spot.node.op, ast.Div):
        divisor = spot.child(spot.node.right)
        yield divisor.as_part(f"{divisor.source} + 1e-4")
    for call in spot.all(ast.Call):
        about = call.receiver
        if call.name in ("rsqrt", "sqrt") and about is not None:
            yield about.as_part(f"{about.source} + 1e-8")
        elif call.name in ("div", "divide", "true_divide") and len(call.node.args) > (0 if call.is_method else 1):
            divisor = call.child(call.node.args[0 if call.is_method else 1])
            yield divisor.becomes(f"{divisor.source} + 1e-4")


ILLNESS = illness(
    __name__,
    code="ADV04",
    severity=Severity.HARMFUL,
    summary="advantages are divided by a std that is 0, a rounding residue, or of one completion",
    fix="Use groups of two or more, an epsilon far above rounding (1e-4), and advantage 0 where all rewards are equal.",
    symptoms=(
        "advantages are huge",
        "division by zero std",
        "advantage nan when all rewards are equal",
        "std is 0",
    ),
    sick=lambda: _example(residue=0.8, difference=0.02),
    well=lambda: _example(residue=1e-4, difference=0.03),
    scripts=Scripts(with_change(" + 1e-4)", ")"), GRPO),
    explains=frozenset({"ADV05", "MET05", "NUM03", "RAT07", "LOSS05"}),
)

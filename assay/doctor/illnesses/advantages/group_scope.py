"""
## What it checks
An advantage compares a completion with the others of its own prompt. The mean advantage of each group must be 0. The
check finds batches in which it is 0 over all rows and not 0 within the groups: the baseline was taken over the batch.

## Why it hurts
Every completion of an easy prompt beats the mean of the batch, the wrong ones hardly less than the right ones, and
every completion of a hard prompt loses to it. The gradient says which prompts are easy, not which answers are good:
wrong answers to easy prompts are reinforced.

## How to fix it
Shape the rewards into groups before the mean is taken, or take the mean by the id of the prompt.

    # before: one group of all rows
    advantages = rewards - rewards.mean()
    # after
    grouped = rewards.view(-1, group_size)
    advantages = (grouped - grouped.mean(dim=1, keepdim=True)).flatten()

## When it is wrong
REINFORCE++ normalises over the batch on purpose. If the settings do not name a baseline, the finding is merely
possible. A batch that holds parts of groups has other means than the whole; it is left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.prompts import need_groups
from assay.doctor.recompute.advantages import centring, has_whole_groups, nearest_advantages, other_kind
from assay.doctor.recompute.consistent import consistent
from assay.programs.edits import Spot, together
from assay.programs.facts.advantages.advantages import (
    Centring,
    centrings,
    is_advantage,
    is_centred_before,
    is_mean,
    pair_of,
    scalings,
)
from assay.programs.facts.advantages.axes import Reduced, axes
from assay.programs.facts.advantages.groups import Expansion, expansions, is_of_several, is_shaped, same_size, shape_of
from assay.programs.facts.rewards.pairing import feeds
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors, peel
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


def check_batch(batch: Batch) -> Verdict:
    batch.need("advantages", "group_ids")
    if reason := other_kind(batch):
        return not_applicable(reason)
    found = centring(batch)
    fact = replace(found.worst, step=batch.step)
    if not found.is_off_P.any():
        need_groups(batch)
        return healthy(f"the advantages of each of {len(found.mean_P)} groups add up to 0", fact)
    if not has_whole_groups(batch):
        return not_applicable("the batch holds parts of groups, whose means may differ from 0")
    if not found.batch_is_centred and not _is_of_the_whole_batch(batch):
        return not_applicable("the advantages are not centred over the batch either: see not_centred and formula")
    stated = "baseline" in batch.settings or batch.settings.get("scale") == "group"
    proven = stated and _is_of_the_whole_batch(batch)  # advantages that are clipped or weighed are off-centre too
    return finding(
        f"the mean advantage is {found.batch_mean:.2g} over the batch, but {found.is_off_P.sum()} of "
        f"{len(found.mean_P)} groups have means of up to {abs(found.mean_P).max():.2g}: completions are compared "
        "across prompts",
        fact,
        Fact("mean advantage of the batch", found.batch_mean),
        confidence=Confidence.PROVEN if proven else Confidence.POSSIBLE,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    spread = [expansion for expansion in expansions(program) if is_of_several(expansion)]
    group = spread[0] if spread else None
    found = {
        centred: _scope(centred, spread)
        for centred in centrings(program)
        if is_advantage(program, centred.value) and not _has_baseline(centred.base)
    }
    for centred, scope in found.items():
        place, level = centred.value.place, centred.level
        over = _reduced(program, level)
        if over is not None and over.label == "g":
            yield healthy("the mean is taken within groups", places=(place,))
        elif over is not None and over.label == "p":
            yield _across(centred.value, level, over, "mean")
        elif scope == "group":
            yield not_enough_data(f"which dimension of {centred.base.shown} holds the answers to one prompt")
        elif scope == "shaped" or (scope == "all" and group is not None and "group" not in found.values()):
            shaped = "rows that were shaped into groups" if scope == "shaped" else "all rows, of several prompts"
            yield likely(
                f"{place.text} subtracts one mean of {shaped}: an easy prompt's answers all beat it",
                places=(place, level.place if group is None else group.place),
                why=(f"line {level.place.line}: {level.shown} is a mean over every dimension",),
            )

    yield from _spreads(program)


def _spreads(program: Program) -> Iterator[Verdict]:
    """Advantages that are divided by a std over prompts."""
    for scaling in scalings(program):
        over = axes(program).reduced(is_mean(scaling.spread) or pair_of(scaling.spread) or scaling.spread)
        if over is not None and over.label == "p" and is_advantage(program, scaling.value):
            yield _across(scaling.value, scaling.spread, over, "std")


def _reduced(program: Program, level: Value) -> Reduced | None:
    mean = is_mean(level)
    return axes(program).reduced(mean) if mean is not None else None


def _across(value: Value, statistic: Value, over: Reduced, name: str) -> Verdict:
    return likely(
        f"the {name} in {value.place.text} runs over the prompts, not over the answers to one prompt: answers to "
        "different prompts are compared",
        places=(statistic.place, over.shaped.place),
        why=(
            f"line {over.shaped.place.line}: {over.shaped.place.text} has the answers to one prompt in one dimension",
            f"line {statistic.place.line}: {statistic.place.text} is taken over the other one",
        ),
    )


def _is_of_the_whole_batch(batch: Batch) -> bool:
    """A batch std may leave a mean that is not quite 0, where rollouts are unscored."""
    if batch.get("rewards") is None:
        return False
    match = nearest_advantages(batch)
    return match.fits and match.variant.is_bug and "whole batch" in match.variant.name


def _has_baseline(base: Value) -> bool:
    """Whether a mean of the others, or a critic, was subtracted before: what is centred then are advantages."""
    for _ in range(6):
        other = base.argument("other")
        if base.op == "sub" and other is not None:
            return any(value.op in ("mean", "sum", "forward", "nanmean") for value in islice(ancestors(other), 40))
        if base.op not in ("view", "reshape", "flatten", "mul", "cast", "clone", "phi") or not base.inputs:
            return False
        base = base.inputs[0]
    return False


def _scope(centring: Centring, spread: list[Expansion]) -> str:
    """group: the mean is over one dimension; shaped: over all of what has two; all: over a flat list of rows."""
    mean = is_mean(centring.level)
    if mean is not None and mean.op == "sum":
        return "all" if "dim" not in mean.arguments and _is_list_of_all(mean.input, spread) else "unknown"
    if mean is None or mean.op not in ("mean", "nanmean"):
        return "unknown"
    shaped = peel(mean.input, ("cast", "clone", "detach", "leave"))
    sizes = shape_of(shaped) if shaped is not None and is_shaped(shaped) else []
    is_spelt = bool(sizes) and sizes[0].constant == 1 and not sizes[0].names  # one prompt by a setting is one group
    one_row = len(sizes) == 2 and (is_spelt or _is_all_rows(sizes[1], spread))
    if "dim" in mean.arguments:
        return "shaped" if one_row and mean.setting("dim") in (1, -1) else "group"
    if len(sizes) == 2 and not one_row and sizes[1].constant != 1 and not mean.name.startswith("statistics"):
        return "shaped"
    return "all" if _is_flat(centring, mean) else "unknown"


def _is_all_rows(size: Value, spread: list[Expansion]) -> bool:
    """prompts * group: as many as all rows together, where each prompt was made `group` of them."""
    factors = size.inputs if size.op == "mul" else []
    others = [factor for factor in factors if not any(same_size(repeat.size, factor) for repeat in spread)]
    return len(factors) == 2 and len(others) <= 1 and all(factor.constant != 1 for factor in factors)


def _is_list_of_all(rewards: Value | None, spread: list[Expansion]) -> bool:
    """A whole list of rewards that was made of rows of several prompts."""
    thing = rewards.thing if rewards is not None else None
    if rewards is None or not isinstance(thing, Listing) or thing.cut_from is not None:
        return False
    repeats = [repeat.value for repeat in spread if repeat.value.context.loops == rewards.context.loops]
    return any(feeds([rewards], repeat) for repeat in repeats)


def _is_flat(centring: Centring, mean: Value) -> bool:
    """All rows of a step at once: nothing in a loop over prompts or groups."""
    base = centring.base
    if base.op in ("parameter", "attribute", "index", "element", "phi") or mean.context.loops != base.context.loops:
        return False
    return len(mean.context.loops) <= 1 and not is_centred_before(base)  # whitened after a baseline of the group


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """One mean or std of rows in groups becomes one for each group."""
    if "shaped into groups" not in verdict.message:
        return  # the rewards have no axis of groups
    around = spot.parent if isinstance(spot.parent.node, ast.BinOp) else spot
    whole = [
        call
        for part in around.parts(1)
        for call in part.all(ast.Call)
        if call.name in ("mean", "std") and not call.axes and call.receiver is not None
    ]
    axes = "axis=1, keepdims=True" if whole and whole[0].modules & {"np", "numpy"} else "dim=1, keepdim=True"
    edited = {call.span: call.with_argument(axes) for call in whole}
    yield together(edited.values(), spot.text)
    yield from edited.values()


def sick() -> Evidence:
    batch = healthy_batch()
    rewards_B = batch.arrays["rewards"]
    advantages_B = (rewards_B - rewards_B.mean()) / (rewards_B.std(ddof=1) + 1e-4)
    return of_batch(consistent(batch, advantages=advantages_B))


ILLNESS = illness(
    __name__,
    code="ADV01",
    severity=Severity.HARMFUL,
    summary="advantages are centred over the batch, not within each prompt's group",
    fix="Take the mean (and the std) of rewards over the completions of one prompt, not over the batch.",
    symptoms=(
        "advantages normalised over the whole batch",
        "advantage per batch not per group",
        "mean over all prompts",
    ),
    sick=sick,
    well=lambda: of_batch(healthy_batch()),
    scripts=Scripts(with_change("rewards - rewards.mean(dim=1, keepdim=True)", "rewards - rewards.mean()"), GRPO),
    explains=frozenset({"ADV05", "MET04"}),
)

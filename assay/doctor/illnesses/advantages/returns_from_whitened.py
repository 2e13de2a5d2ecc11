"""
## What it checks
PPO trains its critic towards returns = values + advantages, with the advantages as they come out of GAE. Whitening them
(mean 0, std 1) is for the policy alone and must come after. The check compares returns - values with the raw and with
the whitened advantages.

## Why it hurts
Whitened advantages have no unit. A critic trained towards values + whitened advantages chases a target that moves with
its own error: the std of what is left is always 1, so the value loss never falls and the values drift away from any
reward. The advantages computed from them are noise.

## How to fix it
Compute the returns first, then whiten.

    # before
    advantages = whiten(gae(rewards, values))
    returns = advantages + values
    # after
    advantages = gae(rewards, values)
    returns = advantages + values
    advantages = whiten(advantages)

## When it is wrong
A critic with a lambda of its own has returns that are neither values + raw advantages nor a multiple of them: such a
batch is left alone. GRPO has no critic.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch, healthy_batch, of_batch, without_groups
from assay.doctor.examples.scripts import GRPO
from assay.programs.edits import Spot
from assay.programs.facts.advantages.advantages import is_mean, plain, scalings
from assay.programs.facts.kinds import Kind
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors, descendants, walk
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

TOKENS = 20  # fewer numbers are near any straight line
NEAR_SPREAD = 1e-3  # relative to the spread: float32 leaves a thousandth of it
WHITE = 1e-2  # of |std - 1|: sample and population std of a few hundred tokens differ by less


def check_batch(batch: Batch) -> Verdict:
    if batch.get("values") is None and batch.get("returns") is None and "baseline" in batch.settings:
        return not_applicable("no critic: the baseline is the group's mean")
    mask_BT, values_BT, returns_BT = batch.need("mask", "values", "returns")
    raw_BT = batch.get("raw_advantages")
    judged_BT = mask_BT & np.isfinite(values_BT) & np.isfinite(returns_BT)
    if raw_BT is not None:
        judged_BT &= np.isfinite(raw_BT)
    if judged_BT.sum() < TOKENS:
        return not_enough_data(f"values and returns of {TOKENS} loss tokens")
    gained_N = (returns_BT - values_BT)[judged_BT]
    facts = (
        Fact("mean of returns - values", float(gained_N.mean()), step=batch.step),
        Fact("std of returns - values", float(gained_N.std()), step=batch.step),
    )
    if raw_BT is None:
        return _without_raw(gained_N, facts)
    return _against_raw(batch, gained_N, raw_BT[judged_BT], facts)


def check_source(program: Program) -> Iterator[Verdict]:
    """Sums of advantages and values, where the advantages are whitened already."""
    whitened = [scaling.value for scaling in scalings(program)]
    for total in program.of("add"):
        other = total.argument("other")
        if total.input is None or other is None:
            continue
        for advantages, value in ((total.input, other), (other, total.input)):
            if not _is_baseline(value, advantages) and not (_is_value(program, value) and _is_target(total)):
                continue
            source = next((part for part in _same_numbers(advantages) if part in whitened), None)
            if source is None:
                yield healthy("the returns are formed from advantages as they are", places=(total.place,))
                continue
            yield likely(
                f"`{total.place.text}` adds values to whitened advantages: these are not returns, and the critic "
                "learns a target of another size",
                places=(total.place, source.place),
                why=(f"line {source.place.line}: {advantages.shown} is divided by its own spread",),
            )


def _is_white(values_N: Array) -> bool:
    return bool(abs(values_N.mean()) < WHITE and abs(values_N.std() - 1.0) < WHITE)


def _without_raw(gained_N: Array, facts: tuple[Fact, ...]) -> Verdict:
    if not _is_white(gained_N):
        return healthy("returns - values is not whitened", *facts)
    return finding(
        f"returns - values has mean {gained_N.mean():.2g} and std {gained_N.std():.3g}: the returns are made of "
        "whitened advantages",
        *facts,
        confidence=Confidence.LIKELY,
    )


def _against_raw(batch: Batch, gained_N: Array, raw_N: Array, facts: tuple[Fact, ...]) -> Verdict:
    spread = float(raw_N.std())
    if spread == 0.0:
        return not_enough_data("raw_advantages that differ")
    if np.abs(gained_N - raw_N).max() <= NEAR_SPREAD * max(spread, float(np.abs(raw_N).max())):
        return healthy("returns - values are the raw advantages", *facts)
    slope, offset = np.polyfit(raw_N, gained_N, 1)
    left = float(np.abs(gained_N - (slope * raw_N + offset)).max())
    if left > NEAR_SPREAD * max(float(gained_N.std()), 1e-12) * 10 or not slope > 0:
        return not_applicable(
            "returns - values is not a multiple of the raw advantages: the critic has a lambda of its own"
        )
    return finding(
        f"returns - values is the raw advantage times {slope:.3g} plus {offset:.2g}, of mean {gained_N.mean():.2g} and "
        f"std {gained_N.std():.3g}: the advantages were normalised before the returns were made",
        *facts,
        Fact("largest distance from that line", left, step=batch.step),
        confidence=Confidence.PROVEN if _is_white(gained_N) else Confidence.LIKELY,
    )


def _same_numbers(value: Value) -> Iterator[Value]:
    """The values behind it through masks, forms and branches."""

    def behind(current: Value) -> list[Value]:
        inner, other = plain(current), current.argument("other")
        if inner is not current:
            return [inner]
        if current.op in ("add", "in_place") and current.input is not None and other is not None and is_mean(other):
            return [current.input]  # a whitening that keeps the mean
        is_masked = current.op in ("mul", "phi", "setitem", "in_place")
        return [part for name, part in current.arguments.items() if is_masked and name not in ("value", "key")]

    return walk(value, behind)


def _is_value(program: Program, value: Value) -> bool:
    """What a critic says of a state: the output of a network that no softmax is taken of, or what is called so."""
    if program.kinds.is_a(value, Kind.OUTPUT):
        return True
    inner = plain(value)
    named = any("value" in name.lower() for name in (*inner.names, inner.name))
    return named and inner.op in ("parameter", "attribute", "index", "element", "phi", "stack", "cat")


def _is_baseline(value: Value, advantages: Value) -> bool:
    """Whether the same numbers were subtracted on the way to the advantages: together they are returns."""
    numbers = plain(value)
    if isinstance(numbers.constant, int | float) or is_mean(value) is not None:
        return False
    subtracted = (part.arguments.get("other") for part in islice(ancestors(advantages), 400) if part.op == "sub")
    return any(part is not None and plain(part) is numbers for part in subtracted)


def _is_target(total: Value) -> bool:
    """Whether the sum is what a critic learns: it is compared with something and squared, or called a return."""
    for number, value in enumerate(descendants(total)):
        if any("return" in name.lower() for name in value.names):
            return True
        squared = value.op in ("mse_loss", "square") or (value.op == "pow" and value.setting("exponent") == 2)
        if number > 60 or squared:
            return squared
    return False


def with_a_critic(batch: Batch, *, whitened_first: bool) -> Batch:
    """The batch as PPO would have it: advantages by token, no groups; what a loss made of it is left out."""
    mask_BT = batch.arrays["mask"]
    random = np.random.default_rng(5)
    values_BT = np.where(mask_BT, random.normal(0.4, 0.1, size=mask_BT.shape), 0.0)
    raw_BT = np.where(mask_BT, random.normal(0.1, 0.3, size=mask_BT.shape), 0.0)
    white_BT = np.where(mask_BT, (raw_BT - raw_BT[mask_BT].mean()) / raw_BT[mask_BT].std(), 0.0)
    returns_BT = np.where(mask_BT, values_BT + (white_BT if whitened_first else raw_BT), 0.0)
    critic = {"values": values_BT, "raw_advantages": raw_BT, "advantages": white_BT, "returns": returns_BT}
    return edit_batch(batch, **without_groups(batch), **critic)


WELL = (
    GRPO.replace(
        "optimizer = torch",
        "critic = torch.nn.Sequential(torch.nn.Embedding(64, 1), torch.nn.Flatten())\noptimizer = torch",
    )
    .replace("policy.parameters(),", "[*policy.parameters(), *critic.parameters()],")
    .replace(
        GRPO[GRPO.index("    rewards = ") : GRPO.index("    with torch.no_grad")],
        "    values = critic(ids)[:, start - 1 : -1].detach()\n"
        "    advantages = (rewards_of(ids[:, start:]).flip(1).cumsum(1).flip(1) - values) * mask\n"
        "    returns = advantages + values\n"
        "    mean = (advantages * mask).sum() / mask.sum().clamp(min=1)\n"
        "    spread = ((advantages - mean) ** 2 * mask).sum() / mask.sum().clamp(min=1)\n"
        "    whitened = (advantages - mean) * torch.rsqrt(spread + 1e-8)\n",
    )
    .replace("ratio * advantages, clipped * advantages", "ratio * whitened, clipped * whitened")
    .replace(
        "        optimizer.zero",
        "        error = (critic(ids)[:, start - 1 : -1] - returns) ** 2\n"
        "        loss = loss + 0.5 * (error * mask).sum() / mask.sum().clamp(min=1)\n        optimizer.zero",
    )
)
SICK = WELL.replace("    returns = advantages + values\n", "").replace(
    "torch.rsqrt(spread + 1e-8)\n", "torch.rsqrt(spread + 1e-8)\n    returns = whitened + values\n"
)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The advantages before they were whitened, where they still have a name."""
    whitened = others[0] if others else None
    bases = [part for part in whitened.all(ast.BinOp) if isinstance(part.node.op, ast.Sub)] if whitened else []
    for name in spot.all(ast.Name) if isinstance(spot.node, ast.BinOp) else ():
        value = name.definition
        if bases and value is not None and value.span == others[0].span:
            yield name.becomes(bases[0].child(bases[0].node.left).source)


ILLNESS = illness(
    __name__,
    code="ADV07",
    severity=Severity.HARMFUL,
    summary="the critic is trained towards whitened advantages",
    fix="Make the returns from the raw advantages, then whiten the advantages for the policy.",
    symptoms=(
        "value loss does not fall",
        "critic does not learn",
        "returns are whitened",
    ),
    sick=lambda: of_batch(with_a_critic(healthy_batch(), whitened_first=True)),
    well=lambda: of_batch(with_a_critic(healthy_batch(), whitened_first=False)),
    scripts=Scripts(SICK, WELL),
    explains=frozenset({"ADV03", "ADV05", "ADV06"}),
)

"""
## What it checks
The settings of the run against ranges outside of which GRPO hardly ever works: learning rate, KL and entropy
coefficients, clip range, group size, temperature, the epsilon of the advantages, gradient clipping, weight decay,
updates per rollout, and a token limit that cuts off nearly every answer from the start. In a script only values far out
of range are named: what its text sets may be changed from outside.

## Why it hurts
A setting out of range looks like a bug: a rate of 0 learns nothing, a KL of weight 1 holds the policy where it is, a
clip range of 1 clips nothing below, a limit of a few tokens lets no answer end. Time goes into looking for a fault in
code that is right.

## How to fix it
Set it to a usual value, and change one setting at a time.

    # before: the entropy bonus outweighs the reward, and the policy becomes random
    config.loss.entropy_coef = 0.5
    # after
    config.loss.entropy_coef = 0.0

## When it is wrong
A small model bears, and needs, rates that would ruin a large one; only rates that no model is known to bear are named.
Every other range here is a habit of the field too, not a law. An experiment may leave it on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from assay.doctor.catalogue import Illness, Plant, Scripts
from assay.doctor.evidence import Curves, Evidence
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.reading.example import GRPO, changed
from assay.doctor.reading.settings import settings
from assay.doctor.trend import is_solved, quarter_medians
from assay.source.program import Program
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy

HIGHEST_RATE = 1e-2  # of all weights; Adam moves each of them by about this much an update
HIGHEST_ADAPTER_RATE = 1e-1  # of low-rank adapters
CUT_OFF = 0.9  # of the answers, from the first quarter to the last
_CLIPPING = ("grpo", "bnpo", "dr_grpo", "dapo", "gspo")  # objectives that use clip_low and clip_high

Settings = Mapping[str, Any]


class Rule(NamedTuple):
    setting: str
    is_off: Callable[[float, Settings], bool]
    limit: float
    reason: str
    severity: Severity


def _highest_rate(settings: Settings) -> float:
    return HIGHEST_ADAPTER_RATE if settings.get("lora_rank") else HIGHEST_RATE


def _clips(settings: Settings) -> bool:
    several = int(settings.get("updates_per_rollout", 2)) > 1  # in a lone update the ratio is 1 and no bound matters
    return several and str(settings.get("objective", "grpo")) in _CLIPPING


def _divides(settings: Settings) -> bool:
    return bool(settings.get("std", "sample") != "none")


RULES = (
    Rule("learning_rate", lambda x, s: x <= 0, 0.0, "nothing is learned", Severity.FATAL),
    Rule(
        "learning_rate",
        lambda x, s: x > _highest_rate(s),
        HIGHEST_RATE,
        "Adam moves every weight by about that much in each update",
        Severity.HARMFUL,
    ),
    Rule("kl_coef", lambda x, s: x > 1, 1.0, "the KL outweighs the reward and holds the policy", Severity.HARMFUL),
    Rule("kl_coef", lambda x, s: x < 0, 0.0, "the distance from the reference is rewarded", Severity.HARMFUL),
    Rule("entropy_coef", lambda x, s: x > 0.1, 0.1, "the bonus makes the policy random", Severity.HARMFUL),
    Rule("clip_low", lambda x, s: x >= 1 and _clips(s), 1.0, "no ratio is ever below 0", Severity.HARMFUL),
    Rule("clip_low", lambda x, s: x == 0 and _clips(s), 0.0, "unwanted tokens are clipped at once", Severity.HARMFUL),
    Rule("clip_high", lambda x, s: x == 0 and _clips(s), 0.0, "wanted tokens are clipped at once", Severity.HARMFUL),
    Rule("group_size", lambda x, s: x < 4, 4.0, "so few answers are a noisy baseline", Severity.WASTEFUL),
    Rule("temperature", lambda x, s: x < 0.3, 0.3, "the answers of a group are nearly the same", Severity.HARMFUL),
    Rule("temperature", lambda x, s: x > 1.5, 1.5, "the answers are mostly noise", Severity.HARMFUL),
    Rule(
        "advantage_epsilon",
        lambda x, s: x > 0.1 and _divides(s),
        0.1,
        "it is no longer small beside the std and shrinks every advantage",
        Severity.HARMFUL,
    ),
    Rule("clip_norm", lambda x, s: 0 < x < 1e-3, 1e-3, "every gradient is cut to the same size", Severity.HARMFUL),
    Rule("weight_decay", lambda x, s: x > 0.3, 0.3, "the weights are pulled to 0", Severity.HARMFUL),
    Rule(
        "updates_per_rollout",
        lambda x, s: x > 16,
        16.0,
        "the last updates train on answers of a policy long gone",
        Severity.HARMFUL,
    ),
)


def check_curves(curves: Curves) -> Verdict:
    known = sorted({rule.setting for rule in RULES if _is_number(curves.settings.get(rule.setting))})
    if not known:
        raise Missing("settings")
    off = [
        rule for rule in RULES if rule.setting in known and rule.is_off(curves.settings[rule.setting], curves.settings)
    ]
    complaints = [f"{rule.setting} = {curves.settings[rule.setting]:g}: {rule.reason}" for rule in off]
    facts = [Fact(rule.setting, curves.settings[rule.setting], rule.limit) for rule in off]
    severities = [rule.severity for rule in off]
    for share in _cut_off(curves):
        limit = curves.settings.get("max_tokens")
        complaints.append(f"max_tokens = {limit}: {share:.0%} of the answers are cut off, from the start")
        facts.append(Fact("answers cut off", share, CUT_OFF))
        severities.append(Severity.HARMFUL)
    if not complaints:
        return healthy(f"{len(known)} settings are within their usual ranges")
    order = (Severity.FATAL, Severity.HARMFUL, Severity.WASTEFUL)
    return finding(
        "; ".join(complaints), *facts, confidence=Confidence.POSSIBLE, severity=min(severities, key=order.index)
    )


def _cut_off(curves: Curves) -> Iterator[float]:
    if not curves.has("truncated_share") or is_solved(curves):
        return
    try:
        quarters = quarter_medians(curves.need("truncated_share")[0], "truncated_share")
    except Missing:
        return  # too short a run to say; the settings themselves were looked at
    if min(quarters) > CUT_OFF:
        yield float(np.median(quarters))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_source(program: Program) -> Iterator[Verdict]:
    """Only values that no script is known to work with: what a text sets may be changed from outside."""
    for one in settings(program):
        if one.reason:
            yield finding(f"{one.name} is {one.value:g}: {one.reason}", confidence=Confidence.LIKELY, places=one.places)
        else:
            yield healthy(f"{one.name} is {one.value:g}", places=one.places)


def sick() -> Evidence:
    return of_curves(healthy_curves(settings={"learning_rate": 0.05}))


def well() -> Evidence:
    return of_curves(healthy_curves(settings={"learning_rate": 0.005}))


ILLNESS = Illness(
    code="HYP01",
    name="hyperparameter",
    severity=Severity.HARMFUL,
    summary="a setting is out of the range in which GRPO works",
    fix="Set it to a usual value, and change one setting at a time.",
    explanation=__doc__,
    sick=sick,
    well=well,
    plant=Plant(settings=("optimizer.learning_rate=0.03",), steps=24),
    curves=check_curves,
    source=check_source,
    scripts=Scripts(sick=changed("lr=1e-6", "lr=0.5"), well=GRPO),
    explains=frozenset({"MET01", "MET02", "MET05", "MET07", "ADV09", "RAT07", "LOSS05"}),
)

"""
## What it checks
The settings of the run against ranges outside of which GRPO hardly ever works: learning rate, KL and entropy
coefficients, clip range, group size, temperature, the epsilon of the advantages, gradient clipping, weight decay,
updates per rollout, and a token limit that cuts off nearly every answer from the start. In a script only values far out
of range are named: what its text sets may be changed from outside.

The learning rate is judged by the size of the model. All weights of a model of 100 million parameters or more: 1e-6 to
1e-5 is usual, above 5e-5 is harmful, above 2e-4 fatal. From 1 million parameters: 1e-5 to 3e-4, 1e-3, 1e-2. Of fewer:
1e-4 to 3e-3, 1e-2, 1e-1. Adapters (LoRA): ten times as much, and 1e-5 to 2e-4 is usual of a large model.
Where the size is not recorded, a rate that some model may bear is not judged.

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
The rates are those of Adam and habits of the field, not laws. TRL's default for GRPO is 1e-6, and most public recipes
for all weights lie between 1e-6 and 1e-5; at 7e-4 SmolLM2 of 135 million parameters scored 0 after one update. LoRA
bears about ten times as much ("LoRA Without Regret", Schulman et al., 2025). The limits are lenient: at 5e-5 even the
adapters of a model of 0.6 billion parameters fell from 57 % to 2 % of GSM8K (jjyaoao/HelloAgents, issue 107). The
ranges for fewer parameters come from small models made for tests and tutorials. Another optimizer, a very large batch
or a long warm-up may bear more. Every other range is a habit too: an experiment may leave it on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Curves
from assay.doctor.examples import healthy_curves, of_curves
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.trend import is_solved, quarter_medians
from assay.doctor.illnesses.metrics import policy_collapse
from assay.doctor.recompute.terms import stated_objective
from assay.programs.facts.optimizer.hyperparameters import RATES, settings
from assay.programs.program import Program
from assay.verdict import (
    Confidence,
    Fact,
    Missing,
    Severity,
    State,
    Verdict,
    finding,
    healthy,
    not_enough_data,
    seen_directly,
)

CUT_OFF = 0.9  # of the answers, from the first quarter to the last
OUTWEIGHS = ("entropy_coef", "kl_coef")  # what pulls the policy beside the reward
Settings = Mapping[str, Any]


class Rates(NamedTuple):
    """Learning rates of Adam for models of this number of parameters or more."""

    parameters: float
    usual: tuple[float, float]
    harmful: float  # above this
    fatal: float


ALL_WEIGHTS = (
    Rates(1e8, (1e-6, 1e-5), 5e-5, 2e-4),
    Rates(1e6, (1e-5, 3e-4), 1e-3, 1e-2),
    Rates(0, (1e-4, 3e-3), 1e-2, 1e-1),
)
ADAPTERS = (
    Rates(1e8, (1e-5, 2e-4), 5e-4, 2e-3),
    Rates(1e6, (1e-4, 3e-3), 1e-2, 1e-1),
    Rates(0, (1e-3, 3e-2), 1e-1, 1.0),
)


class Rule(NamedTuple):
    setting: str
    is_off: Callable[[float, Settings], bool]
    limit: float
    reason: str
    severity: Severity = Severity.HARMFUL


def _clips(settings: Settings) -> bool:
    several = int(settings.get("updates_per_rollout", 2)) > 1  # in a lone update the ratio is 1 and no bound matters
    objective = stated_objective({"objective": "grpo", **settings})
    return several and objective is not None and objective.clips


def _divides(settings: Settings) -> bool:
    return bool(settings.get("std", "sample") != "none")


RULES = (
    Rule("learning_rate", lambda x, s: x <= 0, 0.0, "nothing is learned", Severity.FATAL),
    Rule("kl_coef", lambda x, s: x > 1, 1.0, "the KL outweighs the reward and holds the policy"),
    Rule("kl_coef", lambda x, s: x < 0, 0.0, "the distance from the reference is rewarded"),
    Rule("entropy_coef", lambda x, s: x > 0.1, 0.1, "the bonus makes the policy random"),
    Rule("clip_low", lambda x, s: x >= 1 and _clips(s), 1.0, "no ratio is ever below 0"),
    Rule("clip_low", lambda x, s: x == 0 and _clips(s), 0.0, "unwanted tokens are clipped at once"),
    Rule("clip_high", lambda x, s: x == 0 and _clips(s), 0.0, "wanted tokens are clipped at once"),
    Rule("group_size", lambda x, s: x < 4, 4.0, "few answers are a noisy baseline", Severity.WASTEFUL),
    Rule("temperature", lambda x, s: x < 0.3, 0.3, "the answers of a group are nearly the same"),
    Rule("temperature", lambda x, s: x > 1.5, 1.5, "the answers are mostly noise"),
    Rule("advantage_epsilon", lambda x, s: x > 0.1 and _divides(s), 0.1, "beside the std it shrinks every advantage"),
    Rule("clip_norm", lambda x, s: 0 < x < 1e-3, 1e-3, "every gradient is cut to the same size"),
    Rule("weight_decay", lambda x, s: x > 0.3, 0.3, "the weights are pulled to 0"),
    Rule("updates_per_rollout", lambda x, s: x > 16, 16.0, "the last updates train on answers of a policy long gone"),
)


def check_curves(curves: Curves) -> Verdict:
    settings = curves.settings
    known = sorted({rule.setting for rule in RULES if _is_number(settings.get(rule.setting))})
    if not known:
        raise Missing("settings")
    off = [rule for rule in RULES if rule.setting in known and rule.is_off(settings[rule.setting], settings)]
    complaints = [f"{rule.setting} = {settings[rule.setting]:g}: {rule.reason}" for rule in off]
    facts = [Fact(rule.setting, settings[rule.setting], rule.limit) for rule in off]
    severities = [rule.severity for rule in off]
    for share in _cut_off(curves):
        limit = settings.get("max_tokens")
        complaints.append(f"max_tokens = {limit}: {share:.0%} of the answers are cut off, from the start")
        facts.append(Fact("answers cut off", share, CUT_OFF))
        severities.append(Severity.HARMFUL)
    rate = settings["learning_rate"] if "learning_rate" in known else 0
    ranges = _ranges(settings)
    harmful, fatal = max(rates.harmful for rates in ranges), max(rates.fatal for rates in ranges)
    if rate > harmful:  # for every model that it may be of
        complaints.append(f"learning_rate = {rate:g}: {_usual(ranges, settings)}")
        facts.append(Fact("learning_rate", rate, harmful))
        severities.append(Severity.FATAL if rate > fatal else Severity.HARMFUL)
    if complaints:
        gravest = max(severities, key=lambda severity: severity.rank)
        # no run learns with a rate of 0, and none is known that survives one far above every limit
        is_deadly = "learning_rate" in known and (rate <= 0 or rate > fatal)
        is_suspect = rate > harmful or any(rule.setting in OUTWEIGHS for rule in off)
        is_deadly = is_deadly or (is_suspect and _is_lost(curves))
        sure = Confidence.LIKELY if is_deadly else Confidence.POSSIBLE
        return seen_directly("; ".join(complaints), *facts, confidence=sure, severity=gravest)
    if rate and len(ranges) > 1:
        raise Missing(f"the number of parameters of the model, by which its learning rate {rate:g} is judged")
    if rate > ranges[0].usual[1]:
        return healthy(f"{len(known)} settings are not far from usual; learning_rate: {_usual(ranges, settings)}")
    return healthy(f"{len(known)} settings are within their usual ranges")


def _is_lost(curves: Curves) -> bool:
    try:
        return policy_collapse.check_curves(curves).state is State.FINDING
    except Missing:
        return False


def check_source(program: Program) -> Iterator[Verdict]:
    """Only values that no script is known to work with: what a text sets may be changed from outside."""
    for setting in settings(program):
        what = f"{setting.name} is {setting.value:g}"
        if setting.reason:
            yield finding(f"{what}: {setting.reason}", places=setting.places)
        elif setting.name in RATES:
            yield not_enough_data(f"the size of the model, by which {setting.name} of {setting.value:g} is judged")
        else:
            yield healthy(what, places=setting.places)


def _ranges(settings: Settings) -> list[Rates]:
    """Those that the model may fall under: one if its size and what of it is trained are known."""
    tables = {True: ADAPTERS, False: ALL_WEIGHTS}
    if "lora_rank" in settings:
        tables = {True: tables[bool(settings["lora_rank"])]}
    size = settings.get("parameters")
    if not _is_number(size) or not size:
        return [rates for table in tables.values() for rates in table]
    return [next(rates for rates in table if size >= rates.parameters) for table in tables.values()]


def _usual(ranges: Sequence[Rates], settings: Settings) -> str:
    size = settings.get("parameters")
    low, high = max(ranges, key=lambda rates: rates.harmful).usual
    what = "adapters of a model" if settings.get("lora_rank") else "a model"
    whose = f"{what} of {_in_words(size)} parameters" if size else "the smallest models"
    return f"{low:g} to {high:g} is usual for {whose}, and Adam moves every weight by about the rate in each update"


def _in_words(count: float) -> str:
    """
    >>> _in_words(84_000), _in_words(135e6), _in_words(7e9)
    ('84 thousand', '135 million', '7 billion')
    """
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return str(count)


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


ILLNESS = illness(
    __name__,
    code="HYP01",
    severity=Severity.HARMFUL,
    summary="a setting is out of the range in which GRPO works",
    fix="Set it to a usual value, and change one setting at a time.",
    symptoms=(
        "learning rate too high",
        "model collapses",
        "model outputs garbage after some steps",
        "gibberish",
        "which learning rate",
        "reward collapses suddenly",
        "reward does not move",
        "reward does not increase",
        "LoRA gives poor results",
        "policy collapse",
        "training is unstable",
        "reward fluctuates",
        "reward becomes 0 after some steps",
        "kl explodes",
        "loss increases rapidly",
    ),
    sick=lambda: of_curves(healthy_curves(settings={"learning_rate": 7e-4, "lora_rank": 0, "parameters": 135_000_000})),
    well=lambda: of_curves(healthy_curves(settings={"learning_rate": 7e-4, "lora_rank": 0, "parameters": 84_000})),
    scripts=Scripts(sick=with_change("lr=1e-6", "lr=0.5"), well=GRPO),
    explains=frozenset({"MET01", "MET02", "MET05", "MET07", "MET08", "ADV09", "RAT07", "LOSS05", "OPT02", "NUM03"}),
)

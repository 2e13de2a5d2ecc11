"""
## What it checks
Where the seconds of a step go: which stage takes most of them, what a generated token costs there, how many forward
passes it takes, how much of them is padding, whether the first steps, some steps or all of them are slow, and what
halving the largest stage would gain. The numbers are always shown. It is a finding when something is clearly wasted:
more than half of the time in scoring, more than 70 % padding, or a fifth of the steps five times slower than the rest.

## Why it hurts
A step of GRPO is a chain of stages, and only one of them is usually worth any work. Time that goes into padding, into a
reward that scores answers one by one, or into compiling again for every new shape, teaches the policy nothing.

## How to fix it
Work on the largest stage first: halving a stage that takes the share s of a step makes it 1 / (1 - s / 2) times as
fast. Score answers side by side; sort answers by length before cutting micro-batches; give a compiler few shapes.

    # before: one request after the other
    rewards = [judge(answer) for answer in answers]
    # after
    with ThreadPoolExecutor(16) as pool:
        rewards = list(pool.map(judge, answers))

## When it is wrong
A reward that runs programs or asks a large judge may be worth its time. A machine that is shared has slow steps that no
setting explains. Seconds of stages that overlap do not add up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Curves
from assay.doctor.evidence.curves import Numbers
from assay.doctor.examples import healthy_curves, of_curves
from assay.verdict import Fact, Missing, Severity, Verdict, finding, healthy

FEWEST_STEPS = 5  # steps with a time
SCORING = 0.5  # of the step
BRIEF = 1.0  # seconds per step: whoever waits for less has no problem
PADDING = 0.7  # of the positions
SPIKE = 5.0  # times the median
SPIKES = 0.2  # of the steps
WARM = 3.0  # the first step, times the median
_STAGE = "seconds_"


def check_curves(curves: Curves) -> Verdict:
    (seconds_N,) = curves.need_timings("seconds")
    known_N = seconds_N[np.isfinite(seconds_N)]
    if len(known_N) < FEWEST_STEPS:
        raise Missing(f"seconds of {FEWEST_STEPS} steps")
    median = float(np.median(known_N))
    stages = _stages(curves)
    facts = [Fact("median seconds per step", median), *_stage_facts(curves, stages, median), *_passes(curves)]
    complaints, fixes = [], []
    scoring = stages.get("scored", 0.0) / median if median > 0 else 0.0
    if scoring > SCORING and median > BRIEF:
        complaints.append(f"scoring takes {scoring:.0%} of a step")
        fixes.append("Score answers side by side (reward.workers, judge.concurrency), or make the reward cheaper.")
    padding = _padding(curves)
    if padding is not None:
        facts.append(Fact("positions that are padding in a batch as wide as the longest answer", padding, PADDING))
        if padding > PADDING:
            complaints.append(f"{padding:.0%} of the positions are padding")
            fixes.append("Sort answers by length before they are cut into micro-batches, or pack them.")
    pattern = _pattern(known_N, median)
    facts.append(pattern)
    if (spikes := int(np.sum(known_N > SPIKE * median))) > SPIKES * len(known_N):
        complaints.append(f"{spikes} of {len(known_N)} steps take more than {SPIKE:g} times the median")
        fixes.append("Look for what comes with those steps: a new shape that is compiled, a checkpoint, an evaluation.")
    if not complaints:
        return healthy(f"a step takes {median:.2g} s; {pattern.value}", *facts)
    return finding("; ".join(complaints), *facts, fix=" ".join(fixes))


def _stages(curves: Curves) -> dict[str, float]:
    """Median seconds by stage, the largest first; a stage that does not run in every step counts as 0 there."""
    names = sorted({name for row in curves.timings for name in row if name.startswith(_STAGE)})
    medians = {name: float(np.median([row.get(name) or 0.0 for row in curves.timings])) for name in names}
    largest_first = sorted(medians.items(), key=lambda item: -item[1])
    return {name.removeprefix(_STAGE): median for name, median in largest_first}


def _stage_facts(curves: Curves, stages: dict[str, float], median: float) -> list[Fact]:
    if not stages or median <= 0:
        return []
    facts = [Fact(f"seconds in {stage}", f"{spent:.3g} ({spent / median:.0%})") for stage, spent in stages.items()]
    largest, seconds = next(iter(stages.items()))
    if curves.has("tokens_generated"):
        tokens = float(np.nanmedian(curves.need("tokens_generated")[0]))
        if tokens:
            facts.append(Fact(f"milliseconds a generated token in {largest}", 1000 * seconds / tokens))
    share = min(seconds / median, 1.0)
    return [*facts, Fact(f"speed-up of the step if {largest} took half the time", 1 / (1 - share / 2))]


def _passes(curves: Curves) -> list[Fact]:
    """Forward passes over the answers of a step, beside the one token at a time that sampling takes."""
    settings = curves.settings
    if "updates_per_rollout" not in settings:
        return []
    updates = int(settings["updates_per_rollout"])
    epochs = max(updates // max(int(settings.get("minibatches", 1)), 1), 1)
    parts = {"new, one an epoch": epochs, "old": int(updates > 1)}
    parts["reference"] = int(bool(settings.get("kl_coef")))
    words = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
    facts = [Fact("forward passes over the answers of a step", f"{sum(parts.values())} ({words}), and sampling")]
    if "group_size" in settings and "prompts" in settings:
        answers = int(settings["group_size"]) * int(settings["prompts"])
        facts.append(Fact("answers per step", f"{answers} ({settings['prompts']} prompts x {settings['group_size']})"))
    return facts


def _padding(curves: Curves) -> float | None:
    if curves.settings.get("trainer") == "assay" or not curves.has("length_mean", "length_max"):
        return None  # Assay cuts its passes by tokens: no batch of it is as wide as the longest answer
    mean_N, longest_N = curves.need("length_mean", "length_max")
    with np.errstate(divide="ignore", invalid="ignore"):
        waste_N = 1.0 - mean_N / longest_N
    known_N = waste_N[np.isfinite(waste_N)]
    return float(np.median(known_N)) if len(known_N) else None


def _pattern(seconds_N: Numbers, median: float) -> Fact:
    """Which steps are slow, in words."""
    spikes = np.flatnonzero(seconds_N[1:] > SPIKE * median) + 1
    gaps = set(np.diff(spikes).tolist())
    if len(spikes) >= 3 and len(gaps) == 1:
        words = f"every {gaps.pop()} steps one is slow: a checkpoint or an evaluation"
    elif len(spikes) > SPIKES * len(seconds_N):
        words = "slow steps come irregularly: new shapes that are compiled, or a shared machine"
    elif seconds_N[0] > WARM * median:
        words = f"the first step takes {seconds_N[0] / median:.1f} times the median: compilation and warm-up"
    else:
        words = "the steps are alike"
    return Fact("pattern", words)


def _scoring(seconds: float) -> Curves:
    curves = healthy_curves()
    timings = [{**row, "seconds_scored": seconds, "seconds": 2.01 + seconds} for row in curves.timings]
    return replace(curves, timings=timings)


ILLNESS = illness(
    __name__,
    code="PERF03",
    severity=Severity.WASTEFUL,
    summary="a step spends its time on work that teaches nothing",
    fix="Work on the largest stage first.",
    symptoms=(
        "slow",
        "training is slow",
        "one step takes minutes",
        "GPU utilisation is low",
        "too slow",
        "generation dominates the step time",
    ),
    sick=lambda: of_curves(_scoring(5.0)),
    well=lambda: of_curves(_scoring(1.0)),
)

"""
## What it checks
Whether the policy was destroyed. In the curves: the reward drops to its worst value and stays there; or the entropy is
gone, or that of noise, from one step to the next, and stays so while the reward is not better. In an update: the
weights move by more than three times their own size, or the log-probs of the trained tokens by more than 4 nats on
average, as the model says or as the next update on the same rows shows.

## Why it hurts
A policy that writes nothing but noise, or always the same, earns the same reward for every answer. Nothing pulls it
back: the run goes on at full cost and learns nothing.

## How to fix it
Go back to a checkpoint before the drop and lower the learning rate, first of all; then look for a gradient that is not
clipped, rewards that are not scaled (SGD moves by rate times gradient), many updates per rollout, and a KL or entropy
term of the wrong sign.

    # before: Adam moves every weight by about the rate, and most weights are smaller than 0.1
    optimizer = AdamW(model.parameters(), lr=0.1)
    # after
    optimizer = AdamW(model.parameters(), lr=1e-6)

## When it is wrong
Prompts that suddenly become much harder make rewards drop too. A small batch has steps without any right answer by
chance: the drop must be longer than chance explains. Weights that begin at 0 move by more than their size by right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.curves import Numbers
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.facts.again import changes_between
from assay.doctor.facts.trend import reward_range, trailing
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, seen_directly

LOWEST = 0.02  # of the range of rewards: a mean this near to the worst one
LEVEL = 0.15  # of the range, that the reward had before
BEFORE = 10  # steps before the fall whose mean is the level
STAYS = 5  # steps at the worst
LUCK = 1e-4  # a chance below is none
ROWS = 8  # of a step where that is not known
HALF, LEFT = 0.5, 0.3  # of the height that the reward had reached
FARTHER = 10.0  # times the distance to the reference before
GONE = 0.05  # of the entropy of the step before
NOISE = 3.0  # times the entropy of the step before, and 2 nats more
AT_ONCE = 3  # steps after it that stay so
SOME_ENTROPY = 0.2  # nats per token
OWN_SIZE = 3.0  # of the weights
EACH = 0.3  # mean size of a weight's move: a table that begins at 0 moves by less
FAR = 4.0  # nats per token in one update; sound ones move log-probs by 0.001 to 0.1, tiny ones in a hurry by 2.5


def check_batch(batch: Batch) -> Verdict:
    known = [moved for moved in (_moved_weights(batch), _moved_logprobs(batch)) if moved is not None]
    if not known:
        raise Missing("relative_update or plain_logprobs_after")
    far = [fact for fact, is_far in known if is_far]
    if not far:
        return healthy("the update moves the policy by little", *(fact for fact, _ in known))
    rate = batch.settings.get("learning_rate")
    return finding(
        f"one update destroys the policy: {far[0].what} is {far[0].value:.2g}" + _at(rate),
        *(fact for fact, _ in known),
        Fact("learning rate", "not recorded" if rate is None else rate),
        confidence=Confidence.LIKELY,
    )


def check_batches(batches: Sequence[Batch]) -> Verdict:
    """Rows that are trained on several times: the next update shows what the last one did to them."""
    moves = [
        (float(np.abs(changes_BT)[batch.arrays["mask"]].mean()), batch)
        for batch, changes_BT in changes_between(batches)
        if batch.arrays["mask"].any()
    ]
    if not moves:
        raise Missing("new_logprobs of the same rows in two updates of one step")
    largest, batch = max(moves, key=lambda move: move[0])
    fact = Fact("mean move of a trained token's log-prob by one update, in nats", largest, FAR, batch.step)
    if largest <= FAR:
        return healthy("each update moves the log-probs of its rows by little", fact)
    rate = batch.settings.get("learning_rate")
    return finding(
        f"one update destroys the policy: it moves the log-probs of its own tokens by {largest:.2g} nats on average"
        + _at(rate),
        fact,
        Fact("learning rate", "not recorded" if rate is None else rate),
        confidence=Confidence.LIKELY,
    )


def check_curves(curves: Curves) -> Verdict:
    verdict = _entropy_at_once(curves)
    if verdict is None:
        verdict = _reward_falls(curves) or _falls_from_its_height(curves)
    if verdict is not None:
        return verdict
    (reward_N,) = curves.need("reward_mean")
    if np.isfinite(reward_N).sum() <= STAYS:
        raise Missing(f"reward_mean of {STAYS + 1} steps")
    return healthy("the reward does not fall to its worst value for good")


def _at(rate: float | None) -> str:
    return "" if rate is None else f", at a learning rate of {rate:g}"


def _moved_weights(batch: Batch) -> tuple[Fact, bool] | None:
    share, move = batch.numbers.get("relative_update"), batch.numbers.get("mean_move")
    if share is None or move is None or batch.settings.get("lora_rank"):  # half of fresh adapters is 0
        return None
    fact = Fact("length of the update over that of the weights", float(share), OWN_SIZE, batch.step)
    return fact, share > OWN_SIZE and move > EACH


def _moved_logprobs(batch: Batch) -> tuple[Fact, bool] | None:
    names = ("mask", "plain_logprobs", "plain_logprobs_after")
    if any(batch.get(name) is None for name in names):
        return None
    mask_BT, before_BT, after_BT = batch.need(*names)
    moves_N = np.abs(after_BT - before_BT)[mask_BT & np.isfinite(after_BT) & np.isfinite(before_BT)]
    if not len(moves_N):
        return None
    mean = float(moves_N.mean())
    return Fact("mean move of a trained token's log-prob, in nats", mean, FAR, batch.step), mean > FAR


def _reward_falls(curves: Curves) -> Verdict | None:
    (reward_N,) = curves.need("reward_mean")
    known = np.flatnonzero(np.isfinite(reward_N))
    reward_K = reward_N[known]
    worst, best = _scale(curves, reward_K)
    if not best > worst:
        return None
    low = trailing(reward_K <= worst + LOWEST * (best - worst))
    if low < STAYS or low == len(reward_K):
        return None
    before = float(reward_K[: len(reward_K) - low][-BEFORE:].mean())
    height = (before - worst) / (best - worst)
    rows = low * ROWS
    if curves.has("rollouts_scored"):
        rows = int(np.nansum(curves.column("rollouts_scored")[known[-low:]]))
    if height < LEVEL or (1.0 - min(height, 1.0)) ** rows > LUCK:
        return None
    step = curves.step_at(int(known[-low]))
    return seen_directly(
        f"the reward falls from {before:.2g} to {float(reward_K[-low:].mean()):.2g} and stays there for the last {low} "
        "steps: the policy is lost",
        Fact("reward before", before, worst + LEVEL * (best - worst)),
        Fact("steps at the worst reward", low, STAYS, step),
    )


def _falls_from_its_height(curves: Curves) -> Verdict | None:
    """A finding where most of what the reward had reached is gone in the last steps, for good; surer where the
    entropy or the distance to the reference leave their range in the same steps."""
    (reward_N,) = curves.need("reward_mean")
    known = np.flatnonzero(np.isfinite(reward_N))
    if len(known) < 2 * BEFORE:
        return None
    smooth_K = np.convolve(reward_N[known], np.full(BEFORE, 1.0 / BEFORE), mode="valid")
    worst, _ = _scale(curves, reward_N[known])
    top = int(np.argmax(smooth_K))
    height, left = smooth_K[top] - worst, smooth_K[-1] - worst
    low = trailing(reward_N[known] <= worst + HALF * height)
    spread = float(np.std(reward_N[known[top : top + BEFORE]]))
    if low < BEFORE or left > LEFT * height or height < NOISE * spread:
        return None
    begin = int(known[-low])
    signs = [
        Fact(f"{name} since, over its median before", ratio, limit)
        for name, limit in (("entropy", NOISE), ("ref_kl", FARTHER))
        if (ratio := _over_before(curves.column(name), begin)) > limit
    ]
    return seen_directly(
        f"the reward collapses: it had reached {smooth_K[top]:.2g} and is {smooth_K[-1]:.2g} in the last {low} steps",
        Fact("steps below half of what it had reached", low, BEFORE, curves.step_at(begin)),
        *signs,
        confidence=Confidence.LIKELY if signs else Confidence.POSSIBLE,  # prompts may become harder
    )


def _over_before(values_N: Numbers, begin: int) -> float:
    before_N, after_N = values_N[:begin], values_N[begin:]
    if not np.isfinite(before_N).any() or not np.isfinite(after_N).any() or not np.nanmedian(before_N) > 0:
        return 0.0
    return float(np.nanmedian(after_N) / np.nanmedian(before_N))


def _scale(curves: Curves, reward_K: Numbers) -> tuple[float, float]:
    """(worst, best); 0 is the worst of rewards that are never below it."""
    worst, best = reward_range(curves)
    if not len(reward_K):
        return worst, worst
    lowest = float(reward_K.min())
    worst = worst if np.isfinite(worst) else min(lowest, 0.0)
    return worst, best if np.isfinite(best) else float(reward_K.max())


def _entropy_at_once(curves: Curves) -> Verdict | None:
    entropy_N = curves.column("entropy")
    known = np.flatnonzero(np.isfinite(entropy_N))
    entropy_K = entropy_N[known]
    for place in range(1, len(entropy_K) - AT_ONCE + 1):
        before, after_A = float(entropy_K[place - 1]), entropy_K[place:]
        is_gone = before > SOME_ENTROPY and after_A.max() < GONE * before
        is_noise = after_A.min() > NOISE * before + 2.0
        if (is_gone or is_noise) and not _is_better(curves, int(known[place])):
            last = float(np.median(after_A))
            return seen_directly(
                f"from one step to the next the entropy {'falls' if is_gone else 'jumps'} from {before:.2g} to "
                f"{float(after_A[0]):.2g} nats per token and stays there: "
                + ("the policy writes the same whatever it is asked" if is_gone else "the policy writes noise"),
                Fact("entropy before", before),
                Fact("median entropy since", last, None, curves.step_at(int(known[place]))),
            )
    return None


def _is_better(curves: Curves, index: int) -> bool:
    """Whether the reward is higher than before: a small task may be solved in one step."""
    reward_N = curves.column("reward_mean")
    before_N, after_N = reward_N[:index], reward_N[index:]
    if not np.isfinite(before_N).any() or not np.isfinite(after_N).any():
        return False
    return bool(np.nanmean(after_N) > np.nanmean(before_N))


def _falling(level: float) -> Evidence:
    rewards_N = np.where(np.arange(60) < 30, 0.5, level)
    batch = healthy_batch()
    moved_BT = batch.arrays["plain_logprobs"] - (5.0 if level == 0 else 0.01) * batch.arrays["mask"]
    share = 50.0 if level == 0 else 1e-4
    return Evidence(
        (edit_batch(batch, plain_logprobs_after=moved_BT, relative_update=share, mean_move=0.02 * share),),
        healthy_curves(reward_mean=rewards_N),
    )


ILLNESS = illness(
    __name__,
    code="MET08",
    severity=Severity.FATAL,
    summary="the policy is destroyed: it writes noise, or earns nothing any more",
    fix="Go back to a checkpoint before it and lower the learning rate; then look at gradient clipping and at the "
    "updates per rollout.",
    symptoms=(
        "reward collapses to 0",
        "reward suddenly drops to zero",
        "policy collapse",
        "model outputs garbage after one step",
        "gibberish after the first update",
    ),
    sick=lambda: _falling(0.0),
    well=lambda: _falling(0.4),
    explains=frozenset({"MET01", "MET02", "MET03", "MET05", "MET07", "ADV09", "LOSS05", "RAT07"}),
)

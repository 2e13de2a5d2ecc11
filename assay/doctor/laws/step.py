"""
## What it checks
The optimizer's step follows the gradient: weights that have one move, by about the rate, and they move downhill. Of the
weights: do they move at all, by how much, and does the step point against the gradient? In the first step of an
optimizer that is asked of each tensor by itself. Of the model: do the log-probs of the trained tokens move the way the
loss asks for? That also sees what happens to a gradient on its way to the weights. Where rows are trained on several
times, no model is needed: the next update shows what the last one did to them.
In a log it looks for gradients and a rate beside a KL to the reference, a reward and an entropy that do not move.

## Why it hurts
Weights that do not move learn nothing. An optimizer that climbs unlearns what is rewarded, and a hook that turns
gradients around does the same, with a loss that is right in every digit.

## How to fix it
Look for `maximize=True`, for a minus too many, for hooks on parameters, and for code that touches `.grad` between
`backward()` and `step()`.

    # before: the loss already has its minus
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, maximize=True)
    # after
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)

## When it is wrong
Momentum can carry a step against the gradient of a single batch. Only the first step of a run, which has none, proves
something; later ones must go clearly uphill. A rate below the precision of the weights moves nothing, and groups of
parameters may have rates of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves, of_batch
from assay.doctor.facts.again import changes_between
from assay.doctor.facts.trend import STEPS as QUARTERED
from assay.doctor.facts.trend import has_varied, is_solved, quarter_medians
from assay.doctor.illnesses.optimizer.no_update import SMALLEST_RATE, is_below_precision
from assay.doctor.recompute.loss import is_known_whole
from assay.doctor.recompute.loss import loss as configured_loss
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Fact,
    Missing,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    seen_directly,
)

UPHILL = -0.3  # cosine with the downhill direction: momentum leaves +0.2 to +0.5 in sound runs
BEYOND = 50.0  # times the rate, or the rate times the gradient norm: Adam moves a weight by about the rate
STEPS = 50  # of a log: a policy moves in fewer, at any rate that is used
USED_RATE = 1e-7  # below, a warm-up may not have begun to move anything
ROUNDING_KL = 1e-4  # nats per token: two passes in bfloat16 leave less
GROWN = 2.0  # of the KL, last quarter over first: it grows with the square of the way at first
NOISE = 3.0  # standard errors
ENTROPY = 0.03  # of itself
FALLEN = 0.2  # of the first quarter's reward
EARLY = 0.15  # of the fall, from the first quarter to the second
LOOSER = 1.25  # entropy of the last quarter over the first's: a policy that learns becomes surer
SETTLED = 3  # steps of a warm-up
MOVED_BETWEEN = 0.05  # of the last update
PAIRS = 2  # of updates on the same rows
MOST_PAIRS = 0.8  # of them that go the same way
SOME_LOSS = 1e-4  # of a smaller one the sign is that of rounding
SAME_LOSS = 0.01  # of itself
UPHILL_TOKENS = 0.3  # of the sum of |pull * change|: chance leaves less over a whole batch


DIRECTIONS = ("descent", "tensors_judged", "tensors_against", "tensors_astray", "tensors_exchanged")


def check_batch(batch: Batch) -> Verdict:
    norm = batch.numbers.get("gradient_norm")
    if norm is not None and norm == 0:
        return not_applicable("the gradient is 0")
    if (verdict := _of_weights_that_stay(batch, norm)) is not None:
        return verdict
    # a step that follows no earlier gradient
    is_first = "tensors_judged" in batch.numbers or (batch.step == 1 and batch.numbers.get("update") == 0)
    if (verdict := _of_single_tensors(batch)) is not None:
        return verdict
    descent, pull = batch.numbers.get("descent"), _pull(batch)
    far = _of_weights_that_jump(batch, norm)
    between = batch.numbers.get("moved_between")
    facts = []
    if descent is not None:
        facts.append(Fact("cosine of the step with the downhill direction", float(descent), 0.0, batch.step))
    if pull is not None:
        facts.append(Fact("change of the loss by the step, of its largest possible", pull, 0.0, batch.step))
    uphill = (descent is not None and descent < (0 if is_first else UPHILL)) or (
        pull is not None and pull > UPHILL_TOKENS
    )
    if not uphill and between is not None and between > MOVED_BETWEEN:
        return finding(
            f"something beside the optimizer moved the weights since the last update, by {between:.2g} times that "
            "update",
            Fact("move of the weights between two updates, as a share of the last", between, MOVED_BETWEEN, batch.step),
            fix="Look for what writes to the weights between optimizer steps: a moving average that is copied back, a "
            "checkpoint that is loaded, weights that are tied again.",
            # a loop of one's own may mean it: weights that are clipped, or held at a norm
            confidence=Confidence.POSSIBLE if descent is None else Confidence.LIKELY,
        )
    if not uphill:
        if far is None and not facts:
            raise Missing("descent", "plain_logprobs_after")
        return far or healthy("the step goes downhill", *facts)
    if descent is None or descent >= 0:  # a bonus that the token gradients do not show may have asked for it
        return finding(
            "the log-probs of the trained tokens move against what the loss asks of them: the step goes uphill",
            *facts,
            confidence=Confidence.LIKELY,
        )
    return finding(
        "the step of the weights goes uphill: it makes the loss larger",
        *facts,
        confidence=Confidence.PROVEN if is_first else Confidence.LIKELY,
    )


def check_curves(curves: Curves) -> Verdict:
    """Gradients flow at a rate, and nothing that a moving policy moves does: the KL to the reference stays at what
    rounding leaves, the reward at its level, the entropy too."""
    if (verdict := _falls(curves)) is not None:
        return verdict
    if curves.has("update_norm") or curves.has("tensors_changed_share"):
        return not_applicable("the change of the weights is recorded; no_update (OPT02) judges it")
    norm_N, rate_N, reward_N = curves.need("gradient_norm", "learning_rate", "reward_mean")
    if np.sum((norm_N > 0) & (rate_N >= USED_RATE)) < STEPS:
        return not_enough_data(f"gradient_norm and a learning_rate of {USED_RATE:g} or more in {STEPS} steps")
    if is_solved(curves) or not has_varied(curves) or curves.steps[0] > STEPS:
        return not_applicable("a run that is solved, without any signal, or resumed may stand still")
    rise, noise = _rise(reward_N)
    entropy_N = curves.column("entropy")
    facts = [Fact("reward of the second half less that of the first", rise, NOISE * noise)]
    is_flat = abs(rise) <= NOISE * noise
    if curves.has("entropy"):
        drift, spread = _rise(entropy_N)
        facts.append(Fact("the same of the entropy", drift, NOISE * spread))
        is_flat &= abs(drift) <= max(NOISE * spread, ENTROPY * float(np.nanmedian(entropy_N)))
    if not curves.has("ref_kl"):
        return (
            healthy("reward or entropy move", *facts) if not is_flat else not_enough_data("ref_kl: whether it stays 0")
        )
    kl_N = curves.column("ref_kl")[SETTLED:]
    first, _, _, last = quarter_medians(kl_N, "ref_kl")
    facts.append(Fact("KL to the reference, median of the last quarter", last, ROUNDING_KL))
    is_stuck = 0.0 < last <= ROUNDING_KL and last <= GROWN * first
    if not is_stuck or not is_flat:
        return healthy("the policy moves as it learns", *facts)
    return seen_directly(
        f"{int(np.sum(norm_N > 0))} steps have a gradient (norm {float(np.nanmedian(norm_N)):.2g}) and a learning rate "
        f"({float(np.nanmedian(rate_N)):.2g}), and the policy has not moved: the KL to the reference stays at "
        f"{last:.1g}, reward and entropy at their level",
        *facts,
        fix="Make the optimizer from the parameters of the model that computes the loss, after it was wrapped, and see "
        "that its step reaches them.",
    )


def _falls(curves: Curves) -> Verdict | None:
    """A finding where the reward falls from the first steps on, quarter by quarter: the run unlearns."""
    reward_N = curves.column("reward_mean")
    if np.isfinite(reward_N).sum() < QUARTERED:
        return None
    first, second, third, last = quarter_medians(reward_N, "reward_mean")
    fall, noise = _rise(reward_N)
    size = max(abs(first), abs(first - last))
    is_early = first - second > EARLY * (first - last)
    if not (is_early and second > third > last) or fall > -NOISE * noise or first - last < FALLEN * size:
        return None
    facts = [Fact("median reward of the quarters", f"{first:.3g}, {second:.3g}, {third:.3g}, {last:.3g}")]
    is_looser = False
    if np.isfinite(curves.column("entropy")).sum() >= QUARTERED:
        before, *_, after = quarter_medians(curves.column("entropy"), "entropy")
        facts.append(Fact("entropy of the last quarter over that of the first", after / before if before else np.inf))
        is_looser = after > LOOSER * before
    return seen_directly(
        f"the reward falls from the first steps on, from {first:.3g} to {last:.3g}: the "
        "steps go uphill (maximize=True, a minus too many, a reward or an advantage of the wrong sign)",
        *facts,
        confidence=Confidence.LIKELY if is_looser else Confidence.POSSIBLE,  # prompts may become harder by plan
    )


def _rise(values_N: Array) -> tuple[float, float]:
    """How much higher the second half lies than the first, and the standard error of that."""
    known_N = values_N[np.isfinite(values_N)]
    first_N, second_N = np.array_split(known_N, 2)
    error = math.sqrt(first_N.var() / len(first_N) + second_N.var() / len(second_N))
    return float(second_N.mean() - first_N.mean()), error


def _of_weights_that_stay(batch: Batch, norm: float | None) -> Verdict | None:
    """None where some weight moved, or where that is not known; float32 near 1 cannot move by 1e-8."""
    rate = batch.settings.get("learning_rate")
    pulled = batch.numbers.get("tensors", 0) - batch.numbers.get("tensors_without_gradient", 0)
    stays = batch.numbers.get("tensors_changed") == 0 and pulled > 0 and not is_below_precision(batch)
    if norm is None or not np.isfinite(norm) or not rate or not stays:
        return None
    is_tiny = rate < SMALLEST_RATE and "smallest_step" not in batch.numbers
    return finding(
        f"{pulled:.0f} tensors have a gradient, the rate is {rate:g}, and the step moved none of them",
        Fact("gradient norm", float(norm), step=batch.step),
        Fact("learning rate", float(rate)),
        confidence=Confidence.LIKELY if is_tiny or batch.settings.get("dtype") != "float32" else Confidence.PROVEN,
        fix="Make the optimizer from the parameters of the model that computes the loss, and step it.",
    )


def minimises(batch: Batch) -> bool | None:
    """Whether the loss is to be made smaller: its gradients pull rewarded tokens up, or its value is the configured
    one. False: it is the objective itself. None: that is not known."""
    mask_BT, gradients_BT = batch.get("mask"), batch.get("gradients")
    if mask_BT is not None and gradients_BT is not None and batch.get("advantages") is not None:
        slope = float(np.nansum(np.where(mask_BT, gradients_BT * batch.token_advantages, 0.0)))
        return slope < 0 if slope else None
    number = batch.numbers.get("loss")
    try:
        expected = configured_loss(batch)
    except Missing:
        return None
    if number is None or not abs(expected) > SOME_LOSS:
        return None
    for sign in (1.0, -1.0):
        if abs(number - sign * expected) <= SAME_LOSS * abs(expected):
            return sign > 0
    return None


def check_batches(batches: Sequence[Batch]) -> Verdict:
    """Rows that are trained on several times: between two updates their log-probs must move as the advantages ask."""
    pulls = [pull for pair in changes_between(batches) if (pull := _pull_of(*pair)) is not None]
    if not pulls:
        raise Missing("new_logprobs of the same rows in two updates of one step")
    fact = Fact("sum of advantage * change of log-prob, of its largest possible", float(np.median(pulls)), 0.0)
    counted = Fact("pairs of updates", len(pulls))
    if len(pulls) >= PAIRS and np.median(pulls) < -UPHILL_TOKENS and np.mean(np.array(pulls) < 0) >= MOST_PAIRS:
        return finding(
            "each update makes rewarded tokens less likely and the others likelier: in the same rows, log-probs move "
            f"against their advantages from one update to the next, in {len(pulls)} pairs of updates",
            fact,
            counted,
            confidence=Confidence.LIKELY,
        )
    return healthy("the log-probs of the same rows move as their advantages ask", fact, counted)


def _pull_of(before: Batch, changes_BT: Array) -> float | None:
    """Of an update on the log-probs of its own rows: sum(advantage * change), as a share of the sum of its parts."""
    if before.get("advantages") is None:
        return None
    pulls_BT = np.nan_to_num(before.token_advantages) * changes_BT
    size = float(np.abs(pulls_BT).sum())
    return float(pulls_BT.sum()) / size if size > 0 else None


def _of_single_tensors(batch: Batch) -> Verdict | None:
    """Some tensors go their own way, in a first step, in which each follows its own gradient and nothing else."""
    names = ("tensors_judged", "tensors_against", "tensors_astray", "tensors_exchanged")
    if any(name not in batch.numbers for name in names):
        return None
    judged, against, astray, exchanged = (int(batch.numbers[name]) for name in names)
    facts = (
        Fact("tensors whose steps were held against their gradients", judged, step=batch.step),
        Fact("tensors that moved up their own gradient", against, 0),
        Fact("tensors whose step has nothing to do with their own gradient", astray, 0),
        Fact("tensors that follow the gradient of another tensor", exchanged, 0),
    )
    lost = against + astray
    if exchanged:
        return finding(
            f"{lost} of {judged} tensors do not follow their own gradient, and {exchanged} of them follow that of "
            "another tensor: gradients were exchanged on their way to the optimizer",
            *facts,
            confidence=Confidence.PROVEN,
            fix="Look for code that writes to `.grad` between backward() and step(), and for lists of gradients in "
            "another order than the parameters.",
        )
    if not lost or against == judged:  # all of them: the step as a whole goes uphill
        return None
    if not astray:
        message = f"{against} of {judged} tensors move up their own gradient, the others down"
    elif astray == judged:
        message = f"the step of all {judged} tensors has nothing to do with their gradients"
    else:
        message = f"{lost} of {judged} tensors do not follow their own gradient in the first step of the optimizer"
    is_by_sign = judged - lost >= lost  # an optimizer that turns whole matrices does not move number by number
    return finding(
        message,
        *facts,
        confidence=Confidence.LIKELY if is_by_sign or astray == judged else Confidence.POSSIBLE,
        fix="Look for what changes gradients between backward() and step(): hooks, `.grad` of an earlier batch, "
        "gradients that are copied from another model.",
    )


def _of_weights_that_jump(batch: Batch, norm: float | None) -> Verdict | None:
    rate, move = batch.settings.get("learning_rate"), batch.numbers.get("mean_move")
    if norm is None or move is None or not rate or not np.isfinite(norm):
        return None
    limit = BEYOND * rate * max(1.0, norm)
    if not move > limit:
        return None
    return finding(
        f"the step moved a weight by {move:.2g} on average, {move / rate:.2g} times the rate",
        Fact("mean size of a weight's move", float(move), limit, batch.step),
        Fact("learning rate", float(rate)),
        confidence=Confidence.POSSIBLE,  # parameters may have rates of their own
        severity=Severity.HARMFUL,
        fix="Look for what else moves the weights beside the optimizer, and for the rates of its groups.",
    )


def _pull(batch: Batch) -> float | None:
    """sum(gradient * change) over sum(|gradient * change|) of the log-probs; below 0 the loss became smaller.

    None where the rows are not the whole update: the step follows the other rows too."""
    names = ("gradients", "plain_logprobs", "plain_logprobs_after")
    if any(batch.get(name) is None for name in names) or not is_known_whole(batch):
        return None
    gradients_BT, before_BT, after_BT = batch.need(*names)
    changes_BT = np.nan_to_num(gradients_BT * (after_BT - before_BT))
    size = float(np.abs(changes_BT).sum())
    return float(changes_BT.sum()) / size if size > 0 else None


def _stepped(direction: float) -> Evidence:
    batch = healthy_batch()
    after_BT = batch.arrays["plain_logprobs"] - direction * 0.01 * np.sign(batch.arrays["gradients"])
    return of_batch(edit_batch(batch, step=1, descent=0.5 * direction, plain_logprobs_after=after_BT))


def _logged(kl_N: Array) -> Curves:
    """As others log a run: nothing says how far the weights moved; the reward does not rise."""
    flat_N = 0.4 + 0.05 * np.sin(np.arange(80))
    unknown = {"update_norm": None, "tensors_changed_share": None, "tensors_changed": None}
    return healthy_curves(steps=80, reward_mean=flat_N, entropy=flat_N, ref_kl=kl_N, **unknown)


def sick() -> Evidence:
    return replace(_stepped(-1.0), curves=_logged(2e-6 + 1e-6 * np.sin(np.arange(80))))


def well() -> Evidence:
    return replace(_stepped(1.0), curves=_logged(1e-6 * np.arange(1.0, 81.0) ** 2))


ILLNESS = illness(
    __name__,
    code="LAW07",
    name="law_of_the_step",
    severity=Severity.FATAL,
    summary="the optimizer's step does not follow the gradient",
    fix="Take maximize=True, a second minus, or the hook that changes gradients out of the optimizer's way.",
    symptoms=("maximize=True", "optimizer goes the wrong way"),
    sick=sick,
    well=well,
    explained_by=frozenset({"OPT", "NUM", "MET08"}),
)

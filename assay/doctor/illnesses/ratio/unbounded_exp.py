"""
## What it checks
No loss token may have a ratio new / old that runs away: the check looks for new - old above 10, a ratio of 22,000,
where nothing in the loss bounds it, and for ratios that are infinite. It computes the importance weight old / sampler
as configured and looks whether its mean is near 1, which it must be. In the curves it looks at ratio_max and
correction_mean.

## Why it hurts
The clip bounds a large ratio only where the advantage is positive. Where it is negative the loss is ratio * |A|, so one
such token outweighs the rest of the batch and, through the gradient norm, shrinks every other token's pull to nothing.
Beyond e^88 a float32 is infinite, and infinite times a mask of 0 is NaN. A mean importance weight of 0.06 makes the
gradient 17 times too small.

## How to fix it
Clamp the log-ratio before the exp, and find out where such a distance comes from: old log-probs of other rows or of
other weights, tokens that were never sampled, truncated sampling.

    # before
    ratio = (new - old).exp()
    # after
    ratio = (new - old).clamp(-20.0, 20.0).exp()

## When it is wrong
A token that becomes impossible (new far below old) has a ratio near 0; that is harmless and not reported. Objectives
that bound the ratio from above (cispo, sapo, dual clip, delta) are reported only where it is infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from assay.config.sections import LossConfig
from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import SCORED, edit_batch, healthy_batch, healthy_curves, of_the_loss
from assay.doctor.examples.scripts import with_change
from assay.doctor.facts.trend import quarter_medians
from assay.doctor.recompute.arrays import plain, tensor
from assay.doctor.recompute.terms import stated_objective
from assay.grpo import CORRECTION_MODES, CORRECTIONS, mismatch_weights
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.optimizer.epochs import epochs_over, turns
from assay.programs.facts.ratio import before_detach, differences, uses, without_views
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import follow, peel, walk
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, State, Verdict, finding, healthy, not_enough_data

# of new - old: a ratio of 22,000, beyond what updates on one rollout batch make of a sampled token
LARGE_LOG_RATIO = 10.0
OVERFLOW = 88.0  # the exp of more is infinite in float32
RATIO_LIMIT = 1e3  # of a curve's ratio_max: it is a maximum over many tokens, of which one may be rare
STEPS = 2  # with such a maximum: one step may hold one rare token
WEIGHT_LOW, WEIGHT_HIGH = 0.5, 2.0  # of the mean importance weight, whose expectation is 1
CLIPPED, GROWN = 0.1, 3.0  # share of the tokens, and times the first quarter's
TOKENS = 20  # fewer weights have no mean to speak of


def check_batch(batch: Batch) -> Verdict:
    if batch.get("new_logprobs") is None and batch.settings.get("correction", "off") == "off":
        raise Missing("new_logprobs")
    mask_BT, old_BT = batch.need("mask", "old_logprobs")
    if not mask_BT.any():
        return not_enough_data("a loss token: the mask is empty")
    ratio = _check_ratio(batch, mask_BT, old_BT) if batch.get("new_logprobs") is not None else None
    if ratio is not None and (ratio.state is State.FINDING or batch.settings.get("correction", "off") == "off"):
        return ratio
    return _check_weights(batch, mask_BT, old_BT)


def check_curves(curves: Curves) -> Verdict:
    if not curves.has("correction_mean"):
        curves.need("ratio_max")
    highest_N = curves.column("ratio_max")
    far_N = highest_N > RATIO_LIMIT
    facts = []
    if np.isfinite(highest_N).any():
        worst = int(np.nanargmax(highest_N))
        facts.append(Fact("largest ratio", float(highest_N[worst]), RATIO_LIMIT, curves.step_at(worst)))
    message = f"the ratio is beyond {RATIO_LIMIT:g} in {int(far_N.sum())} of {len(curves)} steps"
    is_sick = bool(far_N.sum() >= STEPS)
    if curves.settings.get("correction", "off") != "off" and curves.has("correction_mean"):
        mean = float(np.nanmedian(curves.need("correction_mean")[0]))
        facts.append(Fact("median of the mean importance weight", mean, WEIGHT_LOW))
        if not is_sick and not WEIGHT_LOW <= mean <= WEIGHT_HIGH:
            is_sick = True
            message = f"the importance weights old / sampler have a mean of {mean:.3g} instead of about 1"
    clipped_N = curves.column("clipped_share")
    if is_sick and np.isfinite(clipped_N).sum() >= TOKENS:
        first, _, _, last = quarter_medians(clipped_N, "clipped_share")
        if last > max(CLIPPED, GROWN * first):
            facts.append(Fact("share of clipped tokens, last quarter", last, CLIPPED))
            message += (
                f", while the share outside of the clip range grows from {first:.2g} to {last:.2g}: the clip does not "
                "hold the ratio (min and max exchanged, a wrong sign, or many passes over each batch)"
            )
    if not is_sick:
        return healthy("ratios and importance weights stay in bounds", *facts)
    return finding(message, *facts)


def check_source(program: Program) -> Iterator[Verdict]:
    yield from _importance_weights(program)
    for loss, terms in program.losses:
        if any(term.kind is TermKind.KL for term in terms):
            continue  # a penalty on the distance is another way to bound it
        for use in uses(program):
            if use.loss is not loss or use.is_surrogate or not program.kinds.is_a(use.ratio, Kind.RATIO):
                continue
            if any(user.op in ("clamp", "minimum", "gt", "lt", "where") for user in use.ratio.users):
                continue  # there is a clip; whether it works is another question
            for difference in differences(program, use.ratio):
                left, right = difference.left, difference.right
                ends = program.origins.gradient(left), program.origins.gradient(right)
                loops = [epochs_over(program, call) for call in program.origins.forwards(left)]
                several = [loop for loop in loops if loop is not None and turns(loop) is not None]
                if ends != (True, False) or not several or before_detach(left) is before_detach(right):
                    continue
                yield finding(
                    f"`{use.ratio.place.text}` is used {turns(several[0])} times on the same rollouts without a clip, "
                    "a clamp or a KL: nothing bounds it",
                    confidence=Confidence.POSSIBLE,
                    places=(use.ratio.place, several[0].place),
                    why=program.kinds.why(use.ratio),
                )


def _check_ratio(batch: Batch, mask_BT: Array, old_BT: Array) -> Verdict:
    with np.errstate(invalid="ignore"):
        log_ratio_BT = np.where(mask_BT, batch.need("new_logprobs")[0] - old_BT, -np.inf)
    log_ratio_BT = np.where(np.isnan(log_ratio_BT), -np.inf, log_ratio_BT)
    row, token = (int(index) for index in np.unravel_index(np.argmax(log_ratio_BT), log_ratio_BT.shape))
    largest = float(log_ratio_BT[row, token])
    limit = OVERFLOW if _is_bounded(batch) else LARGE_LOG_RATIO
    ratio = batch.get("ratio")
    recorded = None if ratio is None else float(ratio[row] if ratio.ndim == 1 else ratio[row, token])
    is_cut = recorded is not None and np.isfinite(recorded) and recorded < np.exp(LARGE_LOG_RATIO)  # before it is used
    if not largest > limit or is_cut:
        finite = log_ratio_BT[np.isfinite(log_ratio_BT)]
        return healthy(
            "no ratio is out of bounds",
            Fact("largest new - old", float(finite.max(initial=-np.inf)), LARGE_LOG_RATIO, batch.step),
        )
    far = int((log_ratio_BT > limit).sum())
    used = "" if recorded is None else f"; the ratio that went into the loss is {recorded:.2g}"
    return finding(
        f"the log-ratio new - old reaches {largest:.3g} and is beyond {limit:g} on {far} of {int(mask_BT.sum())} loss "
        f"tokens{used}",
        Fact("largest new - old", largest, limit, batch.step, row, token),
        Fact("loss tokens beyond the limit", far, step=batch.step),
        confidence=Confidence.LIKELY if recorded is None else Confidence.PROVEN,
    )


def _is_bounded(batch: Batch) -> bool:
    """Whether the objective itself bounds a large ratio on both sides of the advantage."""
    objective = stated_objective(batch.settings)
    if objective is not None and objective.bounds_ratio:
        return True
    return any(batch.settings.get(name) for name in ("delta", "dual_clip"))


def _check_weights(batch: Batch, mask_BT: Array, old_BT: Array) -> Verdict:
    """The ratios are bounded; now the importance weights that correct for the sampler."""
    (sampler_BT,) = batch.need("sampler_logprobs")
    judged_BT = mask_BT & np.isfinite(sampler_BT) & np.isfinite(old_BT)
    if judged_BT.sum() < TOKENS:
        return not_enough_data(f"sampler_logprobs of {TOKENS} loss tokens")
    modes = (batch.settings.get("correction_mode", "truncate"), CORRECTION_MODES)
    if not all(word in known for word, known in ((batch.settings["correction"], CORRECTIONS), modes)):
        return not_enough_data("a correction that is known")
    stated = LossConfig(**{name: value for name, value in batch.settings.items() if name.startswith("correction")})
    old_BT, sampler_BT = np.where(judged_BT, old_BT, 0.0), np.where(judged_BT, sampler_BT, np.nan)
    mean = float(plain(mismatch_weights(tensor(old_BT), tensor(sampler_BT), tensor(mask_BT), stated))[judged_BT].mean())
    fact = Fact("mean importance weight old / sampler", mean, WEIGHT_LOW, batch.step)
    if WEIGHT_LOW <= mean <= WEIGHT_HIGH:
        return healthy("no ratio is out of bounds and the importance weights have a mean near 1", fact)
    return finding(
        f"the importance weights old / sampler ({stated.correction}) have a mean of {mean:.3g} instead of about 1, so "
        f"that the gradient is {'multiplied' if mean > 1 else 'shrunk'} by it",
        fact,
        confidence=Confidence.LIKELY,
    )


@one_per_place
def _importance_weights(program: Program) -> Iterator[Verdict]:
    """Weights between two sets of old log-probs, as factors of the policy's part of the loss."""
    for _, terms in program.losses:
        for term in terms:
            if term.kind not in (TermKind.SURROGATE, TermKind.POLICY):
                continue
            for factor in program.terms.factors(term):
                weight = _whole_weight(factor)
                if program.origins.gradient(weight) is True:
                    continue
                if _is_between_policies(program, weight) and not _is_bounded_weight(program, weight):
                    yield finding(
                        f"the importance weight `{weight.place.text}` multiplies the loss and has no upper bound",
                        places=(weight.place,),
                        why=program.kinds.why(weight),
                        fix="Truncate it: weight.clamp(max=2.0), or clamp the difference before the exp.",
                    )
                elif weight.op == "clamp" and weight.input is not None and _is_between_policies(program, weight.input):
                    yield healthy("the importance weight is bounded", places=(weight.place,))


def _whole_weight(factor: Value) -> Value:
    """The factor without its sign, and whole where only rows of it are taken."""
    return follow(without_views(factor), lambda value: without_views(peel(value, ("neg", "index"))))


def _is_between_policies(program: Program, weight: Value) -> bool:
    """exp(a - b) of log-probs, neither with a gradient: of the trainer and of the engine that sampled."""
    known = differences(program, weight)
    if weight.op != "exp" or len(known) != 1:
        return False
    left, right = known[0].left, known[0].right
    is_ours = program.kinds.is_a(left, Kind.LOGPROBS) or program.kinds.is_a(right, Kind.LOGPROBS)
    return is_ours and program.origins.is_reference(left) is not True


def _is_bounded_weight(program: Program, weight: Value) -> bool:
    """Whether the exponent is bounded, or a mean over tokens; or whether the weight is only used where it is small."""

    def exponent(value: Value) -> list[Value]:
        is_masked = value.op == "mul" and program.kinds.is_a(value.input, Kind.MASK)
        inner = value.argument("other") if is_masked else value.input
        return [] if inner is None else [inner]

    bounds = ("clamp", "minimum", "tanh", "logsigmoid", "where", "phi", "mean")
    uses_of_small = ("le", "lt", "where", "masked_fill", "minimum", "gt", "ge")
    is_bounded = any(value.op in bounds for value in walk(exponent(weight), exponent))
    return is_bounded or any(user.op in uses_of_small for user in weight.users)


def _with_a_jump(distance: float) -> Batch:
    """A later update in which one token of row 1 became likelier by this much; what a loss made of it is left out."""
    batch = healthy_batch(update=1)
    old_BT, new_BT = batch.arrays["old_logprobs"].copy(), batch.arrays["new_logprobs"].copy()
    old_BT[1, 2], new_BT[1, 2] = -distance - 0.2, -0.2
    ratio_BT = np.where(batch.arrays["mask"], np.exp(new_BT - old_BT), 1.0)
    gone = {**of_the_loss(batch), "ref_logprobs": None, "plain_ref_logprobs": None, "kl_coef": 0.0}
    same_as_old = ("old_logprobs", "sampler_logprobs", "plain_logprobs", "plain_raw_logprobs")
    logprobs = {**dict.fromkeys(same_as_old, old_BT), **dict.fromkeys(("new_logprobs", *SCORED), new_BT)}
    return edit_batch(batch, ratio=ratio_BT, **gone, **logprobs)


# the log-probs of the engine that sampled come with the rollout, and correct for its distance
SICK = with_change(
    "    with torch.no_grad():\n",
    "    with torch.no_grad():\n        sampled = score(copy.deepcopy(policy), ids, start)\n",
)
SICK = (
    SICK.replace("ratio * advantages, clipped", "ratio * weight * advantages, clipped")
    .replace("    for epoch", "    weight = torch.exp(old - sampled)\n    for epoch")
    .replace("clipped * advantages", "clipped * weight * advantages")
)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A bound of 2; not safe: the number is a choice."""
    yield spot.followed_by(".clamp(max=2.0)", safe=False)


ILLNESS = illness(
    __name__,
    code="RAT07",
    severity=Severity.HARMFUL,
    summary="ratios or importance weights run away: an exp without a bound",
    fix="Clamp the log-ratio before the exp, and find out why old log-probs are so far from new ones.",
    symptoms=(
        "ratio explodes",
        "importance weights explode",
        "exp overflows",
        "ratio is huge",
        "ratio becomes inf",
        "importance sampling ratio explosion",
    ),
    sick=lambda: Evidence((_with_a_jump(12.0),), healthy_curves(ratio_max=1e5)),
    well=lambda: Evidence((_with_a_jump(0.5),), healthy_curves(ratio_max=10.0)),
    scripts=Scripts(
        sick=SICK, well=SICK.replace("torch.exp(old - sampled)", "torch.exp(old - sampled).clamp(max=2.0)")
    ),
    explains=frozenset({"ALGN09", "LOSS06", "MET05", "MET07", "NUM03", "RAT01", "SAMP06"}),
)

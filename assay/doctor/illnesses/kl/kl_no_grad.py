"""
## What it checks
With a KL in the loss the gradient of each token has two parts: that of the advantage, and that of the KL. The check
computes both and looks at which of them the recorded gradient holds.

## Why it hurts
A KL computed under no_grad adds a number to the loss and nothing to its gradient. The coefficient has no effect at any
size, the policy drifts as if there were no reference, and the logged KL looks like that of a weak penalty.

## How to fix it
Compute the KL from the log-probs that carry the gradient. Only the reference's may be detached.

    # before
    with torch.no_grad():
        kl = approximate_kl(new, ref)
    loss = policy_loss + beta * kl.mean()
    # after
    kl = approximate_kl(new, ref.detach())
    loss = policy_loss + beta * kl.mean()

## When it is wrong
While the policy is still the reference the KL has no slope, and nothing can be said; the same holds where its part is
too small to be seen beside rounding. A KL that is taken off the reward has no gradient of its own, by right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import Illness, Scripts
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edited, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, changed
from assay.doctor.illnesses.ratio.clip_dead import fitted
from assay.doctor.recompute import gradient_parts
from assay.doctor.recompute.loss import aggregation_of, kl_is_placed, weights
from assay.doctor.recompute.terms import loss_settings
from assay.programs.facts.kl.penalties import is_a_penalty, penalties, policy_and_reference
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.origins import above, differences_in
from assay.programs.run.roles import Flow, flows
from assay.programs.run.sight import requires_grad
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import walk
from assay.verdict import Confidence, Fact, Missing, Severity, Verdict, finding, healthy, not_applicable

SEEN = 5.0  # the KL's part must be so many times the limit to be told from rounding
LIMIT = {"float32": 1e-3, "bfloat16": 3e-2, "float16": 1e-2}  # relative distance of a gradient that fits
# what adds a term to a loss, or only changes its form
SUMS = frozenset("add sub mul div sum mean neg cast index squeeze unsqueeze view reshape masked_fill where dot".split())


def check_batch(batch: Batch) -> Verdict:
    settings = loss_settings(batch)
    if not batch.setting("kl_coef") or settings.kl_placement != "loss":
        return not_applicable("the loss has no KL")
    if not kl_is_placed(batch):
        raise Missing("kl_placement")
    mask_BT, gradients_BT = batch.need("mask", "gradients")
    policy_BT, kl_BT = gradient_parts(batch, weights(batch, aggregation_of(batch)), settings)
    seen_BT = mask_BT & np.isfinite(gradients_BT) & np.isfinite(policy_BT + kl_BT)
    recorded, policy, kl = gradients_BT[seen_BT], policy_BT[seen_BT], kl_BT[seen_BT]
    limit = LIMIT.get(batch.settings.get("dtype", "float32"), LIMIT["float32"])
    size = float(np.linalg.norm(policy + kl))
    share = float(np.linalg.norm(kl)) / size if size else 0.0
    if share < SEEN * limit:
        return not_applicable("the KL has no slope that could be seen: the policy is still near its reference")
    without, whole = fitted(recorded, policy)[1], fitted(recorded, policy + kl)[1]
    facts = (
        Fact("distance of the gradient from the policy part alone", without, limit, batch.step),
        Fact("distance of the gradient from policy and KL together", whole),
        Fact("share of the KL in the gradient that is meant", share),
    )
    if without <= limit < whole:
        return finding(
            f"the loss has a KL of weight {settings.kl_coef:g}, and its gradient is that of the policy part alone",
            *facts,
        )
    if whole <= limit:
        return healthy("the gradient holds the KL's part", *facts)
    return not_applicable("the gradient fits neither with nor without the KL; loss_formula (LOSS06) speaks of that")


def check_source(program: Program) -> Iterator[Verdict]:
    told = set()
    for penalty in penalties(program):
        if penalty.core.place in told or not is_a_penalty(program, penalty):
            continue
        told.add(penalty.core.place)
        if penalty.has_gradient is False and program.origins.gradient(penalty.loss):
            sides = policy_and_reference(program, penalty.difference) if penalty.difference is not None else None
            new = sides[0] if sides is not None else penalty.core
            yield finding(
                f"the KL `{penalty.core.place.text}` is in the loss without a gradient: it moves a number only",
                confidence=Confidence.LIKELY,
                places=(penalty.core.place, penalty.loss.place, new.place),
                why=program.kinds.why(penalty.difference.value) if penalty.difference is not None else (),
            )
        elif penalty.has_gradient:
            yield healthy("the KL in the loss carries a gradient", places=(penalty.core.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """A difference to the reference in the value of the loss, but not in its gradient."""
    for backward, flow in flows(run):
        advantages = [piece.advantages for piece in backward.pieces if piece.advantages is not None]
        if not advantages or len(advantages) < len(backward.pieces):
            continue
        weights = {id(value) for weight in advantages for value in above(weight)}
        to_reference = [value for value, one, other in differences_in(flow.values) if _is_to_reference(run, one, other)]
        pulled = [value for value in to_reference if requires_grad(value)]
        for value in to_reference if not pulled else ():
            if id(value) not in weights and _is_added(value, flow):
                yield finding(
                    f"`{value.place.text}` is a difference to the reference in the value of the loss, and carries no "
                    "gradient: the KL restrains nothing",
                    places=(value.place, backward.loss.place),
                )
        for value in pulled:
            detached = next((user for user in walk(value, flow.users) if user.op == "detach"), None)
            if detached is not None and not _reaches_loss(value, flow):
                yield finding(
                    f"`{detached.place.text}` takes the gradient out of the KL before it is added to the loss",
                    places=(detached.place, value.place),
                )
            elif any(requires_grad(user) and user.op != "detach" for user in flow.users(value)):
                yield healthy("the KL carries a gradient")


def _is_to_reference(run: WatchedRun, one: Value, other: Value) -> bool:
    """Between log-probs of a model that is trained and of one that is not."""
    mine, theirs = run.origins.pass_of(one), run.origins.pass_of(other)
    if mine is None or theirs is None:
        return False
    trained = [run.models[forward.model].is_trained and not forward.adapter_off for forward in (mine, theirs)]
    return sorted(trained) == [False, True]


def _is_added(value: Value, flow: Flow) -> bool:
    """Whether it gets into the loss by sums alone, once something with a gradient is beside it."""

    def added(current: Value) -> Iterator[Value]:
        for user in flow.users(current):
            others = [part for part in user.arguments.values() if part is not current and requires_grad(part)]
            if not requires_grad(user) or (user.op in SUMS and (not others or user.op in ("add", "sub"))):
                yield user

    return flow.loss in walk(value, added)


def _reaches_loss(value: Value, flow: Flow) -> bool:
    """Through values that carry a gradient."""

    def carriers(one: Value) -> list[Value]:
        return [user for user in flow.users(one) if requires_grad(user) or user.thing is None]

    return flow.loss in walk(value, carriers)


def sick() -> Evidence:
    return of_batch(_gradients(kl_share=0.0))


def well() -> Evidence:
    return of_batch(_gradients(kl_share=1.0))


def _gradients(kl_share: float) -> Batch:
    """A policy that has moved away from its reference; so much of the KL's gradient reaches it."""
    batch = healthy_batch(update=1)
    policy_BT, kl_BT = gradient_parts(batch, weights(batch, aggregation_of(batch)))
    gone = dict.fromkeys(("gradients_split", "gradients_perturbed"))
    return edited(batch, gradients=policy_BT + kl_share * kl_BT, **gone)


ILLNESS = Illness(
    code="KL02",
    name="kl_no_grad",
    severity=Severity.HARMFUL,
    summary="the KL in the loss has no gradient, for any coefficient",
    fix="Compute the KL from the log-probs that carry the gradient, outside of no_grad; detach only the reference's.",
    explanation=__doc__,
    symptoms=(
        "KL coefficient has no effect",
        "changing beta changes nothing",
        "KL computed under no_grad",
    ),
    run=check_run,
    sick=sick,
    well=well,
    batch=check_batch,
    source=check_source,
    scripts=Scripts(sick=changed("0.04 * kl)", "0.04 * kl.detach())"), well=GRPO),
    explains=frozenset({"MET02", "KL01", "LOSS06"}),
)

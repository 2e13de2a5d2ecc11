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

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.evidence import Batch
from assay.doctor.examples import GRADIENTS, edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute.loss import expected_gradients, kl_is_placed
from assay.doctor.recompute.match import fit_scale
from assay.doctor.recompute.terms import loss_settings
from assay.programs.edits import Spot, names_in
from assay.programs.facts.kl.penalties import is_a_penalty, penalties, policy_and_reference
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.kinds import above, differences_in
from assay.programs.run.roles import Flow, flows
from assay.programs.run.sight import requires_grad
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import walk
from assay.verdict import Edit, Fact, Missing, Severity, Verdict, finding, healthy, not_applicable

SEEN = 5.0  # the KL's part must be this many times the limit to be distinguished from rounding
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
    policy_BT, kl_BT = expected_gradients(batch, settings)
    seen_BT = mask_BT & np.isfinite(gradients_BT) & np.isfinite(policy_BT + kl_BT)
    recorded, policy, kl = gradients_BT[seen_BT], policy_BT[seen_BT], kl_BT[seen_BT]
    limit = LIMIT.get(batch.settings.get("dtype", "float32"), LIMIT["float32"])
    size = float(np.linalg.norm(policy + kl))
    share = float(np.linalg.norm(kl)) / size if size else 0.0
    if share < SEEN * limit:
        return not_applicable("the KL has no slope that could be seen: the policy is still near its reference")
    without, whole = fit_scale(recorded, policy)[1], fit_scale(recorded, policy + kl)[1]
    facts = (
        Fact("distance of the gradient from the policy part alone", without, limit, batch.step),
        Fact("distance of the gradient from policy and KL together", whole),
        Fact("share of the KL in the gradient that is meant", share),
    )
    if without <= limit < whole:
        what = f"the loss has a KL of weight {settings.kl_coef:g}, and its gradient is that of the policy part alone"
        return finding(what, *facts)
    if whole <= limit:
        return healthy("the gradient holds the KL's part", *facts)
    return not_applicable("the gradient fits neither with nor without the KL; loss_formula (LOSS06) speaks of that")


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for penalty in penalties(program):
        place, difference = penalty.core.place, penalty.difference
        if not is_a_penalty(program, penalty):
            continue
        if penalty.has_gradient is False and program.origins.gradient(penalty.loss):
            sides = policy_and_reference(program, difference) if difference is not None else None
            new = sides[0] if sides is not None else penalty.core
            yield finding(
                f"the KL `{place.text}` is in the loss without a gradient: it moves a number only",
                places=(place, penalty.loss.place, new.place),
                why=program.kinds.why(difference.value) if difference is not None else (),
            )
        elif penalty.has_gradient:
            yield healthy("the KL in the loss carries a gradient", places=(place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """A difference to the reference in the value of the loss, but not in its gradient."""
    for backward, flow in flows(run):
        advantages = [piece.advantages for piece in backward.pieces if piece.advantages is not None]
        if not advantages or len(advantages) < len(backward.pieces):
            continue
        weights = {id(value) for weight in advantages for value in above(weight)}
        to_reference = [value for value, *sides in differences_in(flow.values) if _is_to_reference(run, *sides)]
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


def _is_to_reference(run: WatchedRun, left: Value, right: Value) -> bool:
    """Between log-probs of a model that is trained and of one that is not."""
    forwards = [forward for side in (left, right) if (forward := run.kinds.pass_of(side)) is not None]
    trained = [run.models[forward.model].is_trained and not forward.adapter_off for forward in forwards]
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

    def carriers(current: Value) -> list[Value]:
        return [user for user in flow.users(current) if requires_grad(user) or user.thing is None]

    return flow.loss in walk(value, carriers)


def _gradients(kl_share: float) -> Batch:
    """A policy that has moved away from its reference; this share of the KL's gradient reaches it."""
    batch = healthy_batch(update=1)
    policy_BT, kl_BT = expected_gradients(batch)
    return edit_batch(batch, **{**dict.fromkeys(GRADIENTS), "gradients": policy_BT + kl_share * kl_BT})


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """What takes the KL out of the graph is taken away: detach(), no_grad()."""
    function = Spot(spot.text, spot.function)
    targets = spot.statement.node.targets if isinstance(spot.statement.node, ast.Assign) else []
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    own = [call for part in (spot, *others, *spot.parts(1)) for call in part.all(ast.Call) if call.name == "detach"]
    used = [call for call in function.all(ast.Call) if call.name == "detach" and names & names_in(call.node)]
    for call in (*own, *used):
        yield call.without_call()
    for part in (spot, *spot.parts(1)):
        for around in part.outside:
            for item in around.node.items if isinstance(around.node, ast.With) else ():
                if around.child(item.context_expr).name in ("no_grad", "inference_mode"):
                    yield around.without_item(item)
    for decorator in getattr(spot.function, "decorator_list", []):
        written = spot.child(decorator)
        line = written.span[0]
        yield spot.text.edit((line, 0, line + 1, 0), "") if written.name in ("no_grad", "inference_mode") else None


ILLNESS = illness(
    __name__,
    code="KL02",
    severity=Severity.HARMFUL,
    summary="the KL in the loss has no gradient, for any coefficient",
    fix="Compute the KL from the log-probs that carry the gradient, outside of no_grad; detach only the reference's.",
    symptoms=(
        "KL coefficient has no effect",
        "changing beta changes nothing",
        "KL computed under no_grad",
    ),
    sick=lambda: of_batch(_gradients(kl_share=0.0)),
    well=lambda: of_batch(_gradients(kl_share=1.0)),
    scripts=Scripts(sick=with_change("0.04 * kl)", "0.04 * kl.detach())"), well=GRPO),
    explains=frozenset({"MET02", "KL01", "LOSS06"}),
)

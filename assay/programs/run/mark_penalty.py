"""The KL to a reference: whether it is in the gradient of the loss, and whether the reference is another network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.programs.run.origins import above, chosen_ids, differences, requires_grad
from assay.programs.run.roles import Flow
from assay.programs.run.watched import Backward, WatchedRun, numbers_of
from assay.programs.value import Value
from assay.verdict import Confidence

MOST = 24  # backwards that are looked at
_SUMS = frozenset(
    "add sub mul div sum mean neg cast index squeeze unsqueeze view reshape masked_fill where dot".split()
)


def mark_penalty(trace: WatchedRun) -> None:
    for backward in trace.backwards[:MOST]:
        if backward.roles is not None:
            _penalty(trace, backward, backward.roles.flow)
            _same_network(trace, backward, backward.roles.flow)
    _zero_kl(trace)


def _penalty(trace: WatchedRun, backward: Backward, flow: Flow) -> None:
    """A difference to the reference in the value of the loss, but not in its gradient."""
    pieces = backward.roles.pieces if backward.roles is not None else []
    if not pieces or any(piece.advantages is None for piece in pieces):
        return
    weights = {id(one) for piece in pieces if piece.advantages is not None for one in above(piece.advantages)}
    pulled = [
        value
        for value, one, other in differences(flow.values)
        if requires_grad(value) and _is_to_reference(one, other, trace)
    ]
    for value, one, other in differences(flow.values):
        if id(value) in weights or pulled or not _is_to_reference(one, other, trace) or requires_grad(value):
            continue
        if not _is_added(value, flow):
            continue
        trace.found(
            "KL02",
            f"`{value.place.text}` is a difference to the reference in the value of the loss, and carries no "
            "gradient: the KL "
            "restrains nothing",
            value.place,
            backward.loss.place,
        )
    for value in pulled:
        behind = [one for one in _all_behind(value, flow) if one.op == "detach"]
        through = any(requires_grad(one) and one.op != "detach" for one in value.users if id(one) in flow.inside)
        if behind and not _reaches_loss(value, backward.loss, flow):
            trace.found(
                "KL02",
                f"`{behind[0].place.text}` takes the gradient out of the KL before it is added to the loss",
                behind[0].place,
                value.place,
            )
        elif through:
            trace.is_well("KL02", "the KL carries a gradient")


def _is_added(value: Value, flow: Flow) -> bool:
    """Whether it gets into the loss by sums alone, once something with a gradient is beside it."""
    seen, waiting = {id(value)}, [value]
    while waiting:
        current = waiting.pop()
        if current is flow.loss:
            return True
        for user in current.users:
            if id(user) not in flow.inside or id(user) in seen:
                continue
            others = [one for one in user.arguments.values() if one is not current and requires_grad(one)]
            if not requires_grad(user) or (user.op in _SUMS and (not others or user.op in ("add", "sub"))):
                seen.add(id(user))
                waiting.append(user)
    return False


def _all_behind(value: Value, flow: Flow) -> Iterator[Value]:
    seen, waiting = {id(value)}, [value]
    while waiting:
        for user in waiting.pop().users:
            if id(user) in flow.inside and id(user) not in seen:
                seen.add(id(user))
                yield user
                waiting.append(user)


def _reaches_loss(value: Value, loss: Value, flow: Flow) -> bool:
    """Through values that carry a gradient."""
    seen, waiting = {id(value)}, [value]
    while waiting:
        current = waiting.pop()
        if current is loss:
            return True
        for user in current.users:
            if id(user) in flow.inside and id(user) not in seen and (requires_grad(user) or user.thing is None):
                seen.add(id(user))
                waiting.append(user)
    return False


def _is_to_reference(one: Value, other: Value, trace: WatchedRun) -> bool:
    mine, theirs = trace.origins.pass_of(one), trace.origins.pass_of(other)
    if mine is None or theirs is None:
        return False
    trained = [trace.models[forward.model].is_trained and not forward.adapter_off for forward in (mine, theirs)]
    return sorted(trained) == [False, True]


def _same_network(trace: WatchedRun, backward: Backward, flow: Flow) -> None:
    """Beside old another set of log-probs of the same tokens by the very weights that are trained: a reference that "
    "is none."""
    for piece in backward.roles.pieces if backward.roles is not None else ():
        if piece.old_operand is None or piece.product is None:
            continue
        before = trace.origins.pass_of(piece.old_operand)
        inside = {id(one) for one in above(piece.product)}
        for value, one, other in differences(flow.values):
            if id(value) in inside or not requires_grad(value):
                continue
            fixed = other if requires_grad(one) else one
            forward = trace.origins.pass_of(fixed)
            if forward is None or before is None or forward is before or forward.weights != before.weights:
                continue
            if requires_grad(fixed):
                continue
            if (
                forward.model == piece.forward.model
                and not forward.adapter_off
                and trace.models[forward.model].is_trained
            ):
                trace.found(
                    "KL05",
                    f"the reference in `{value.place.text}` is the policy itself: its log-probs come from a pass of "
                    "the weights "
                    "that are trained",
                    forward.value.place,
                    value.place,
                    confidence=Confidence.PROVEN,
                )


def _zero_kl(trace: WatchedRun) -> None:
    """The difference of two passes of the same weights over the same tokens: a KL to a reference that is the policy."""
    samplers = {id(draw.forward) for draw in trace.samplings}
    for value, one, other in differences(trace.graph.values):
        if requires_grad(one) or requires_grad(other):
            continue
        mine, theirs = trace.origins.pass_of(one), trace.origins.pass_of(other)
        if mine is None or theirs is None or mine is theirs or id(mine) in samplers or id(theirs) in samplers:
            continue
        if mine.model != theirs.model or mine.weights != theirs.weights or mine.adapter_off or theirs.adapter_off:
            continue
        ids = [chosen_ids(part, trace.origins) for part in (one, other)]
        if (
            ids[0] is None
            or ids[1] is None
            or not np.array_equal(ids[0], ids[1])
            or not trace.models[mine.model].is_trained
        ):
            continue
        numbers = numbers_of(value)
        if numbers is not None and not numbers.any():
            trace.found(
                "KL05",
                f"`{value.place.text}` is the difference of two passes of the same weights, 0 everywhere: the "
                "reference is the policy "
                "itself",
                value.place,
                theirs.value.place,
                confidence=Confidence.PROVEN,
            )

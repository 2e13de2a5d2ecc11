"""How two sets of log-probs were scored: by which network, at which temperature, with which mask."""

from __future__ import annotations

from assay.programs.facts.kinds.kind import SCORES, Kind
from assay.programs.facts.origin import is_network_call, network, same_network
from assay.programs.facts.ratio import Difference
from assay.programs.facts.sampling.samplers import drawn, is_touched, loaded
from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.script import Program


def scored_apart(program: Program, one: Difference, loss: Value | None) -> tuple[str, Value] | None:
    """In what way new and old log-probs cannot be equal before the first update, and where old is made."""
    left, right = program.origins.forwards(one.left), program.origins.forwards(one.right)
    if not left or not right or any(call.op != "forward" for call in (*left, *right)):
        return None
    other = _frozen(program, right, loss)
    if other is not None:
        return f"{one.right.shown} are the log-probs of a network that neither samples nor is trained", other
    if not all(same_network(left[0].arguments["model"], call.arguments["model"]) for call in (*left, *right)):
        return None
    hot, cold = temperature(program, one.left), temperature(program, one.right)
    if hot is not None and cold is not None and hot != cold:
        return f"{one.left.shown} is scored at temperature {hot:g}, {one.right.shown} at {cold:g}", right[0]
    if len(left) == 1 and len(right) == 1 and {_is_blind(right[0]), _is_blind(left[0])} == {True, False}:
        blind = one.right if _is_blind(right[0]) else one.left
        return f"{blind.shown} is scored with a mask of ones, the other side with the mask of the padding", right[0]
    return None


def _frozen(program: Program, calls: list[Value], loss: Value | None) -> Value | None:
    """The call, if the network behind it is not the trained one, gets no weights in a loop, and draws nothing."""
    if loss is None or not program.origins.trained():
        return None
    drawers = [model for _, model in drawn(program, loss)]
    if not drawers:
        return None
    for call in calls:
        model = network(call.arguments["model"])
        if any(same_network(model, one) for one in (*drawers, *program.origins.trained())):
            return None
        if model.context.loops or is_touched(program, model):
            return None
        if any(load.context.loops for load in loaded(program, model)):
            return None
    return calls[0]


def temperature(program: Program, value: Value) -> float | None:
    """What logits are divided by on the way to log-probs; None where the text does not say."""
    product, waiting, seen = 1.0, [value], {id(value)}
    while waiting:
        current = waiting.pop()
        if is_network_call(current, program.kinds):
            continue
        if current.op in ("phi", "parameter", "element") or (current.op == "mul" and _is_score(program, current.input)):
            return None
        if current.op == "div" and _is_score(program, current.input):
            by = current.arguments["other"].constant
            if by is UNKNOWN or not isinstance(by, int | float) or by == 0:
                return None
            product *= by
        for one in _data(program, current):
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)
    return product


def _data(program: Program, value: Value) -> list[Value]:
    """What the numbers of a value are made of: not what picks, masks or shapes them."""
    if value.op in ("listing", "stack", "cat"):
        return [one for name, one in value.arguments.items() if name != "dim"]
    if value.op in ("sub", "mul"):
        return [one for one in value.inputs if not program.kinds.is_a(one, Kind.MASK, Kind.COUNT, Kind.LOGSUMEXP)]
    names = ("input", "data", "logits", "probs")
    return [one for name, one in value.arguments.items() if name in names]


def _is_score(program: Program, value: Value | None) -> bool:
    return program.kinds.is_a(value, *SCORES)


def _is_blind(call: Value) -> bool | None:
    """Whether the attention mask is all ones; None without a mask."""
    mask = call.argument("given_attention_mask")
    if mask is None:
        return None
    return mask.name.endswith("ones_like") or mask.name.endswith(".ones")

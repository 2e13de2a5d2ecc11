"""Whether the weights that a loss is computed with are those that an optimizer changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.optimizer.optimizers import Optimizer, optimizers
from assay.programs.facts.optimizer.ownership import (
    contains,
    direct_parts,
    is_held,
    is_network,
    is_used,
    trained_networks,
)
from assay.programs.facts.origin import gradient_switches, network, parameters_of, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors, walk
from assay.verdict import Place

_HEADS = ("lm_head", "embed_out", "score", "v_head", "value_head")
_LATE = {
    "get_peft_model": "the adapters are not in it",
    "FSDP": "it replaces the parameters by its own",
    "FullyShardedDataParallel": "it replaces the parameters by its own",
}


_OPAQUE = ("log_prob", "entropy", "rsample", "super", "unknown")
_OBJECTS = ("call", "parameter", "attribute", "instance")  # a buffer may give back what it was given


@dataclass(frozen=True)
class UnchangedWeights:
    """`what`: "" where everything is as it should be."""

    places: tuple[Place, ...]
    what: str = ""
    fix: str = ""


def unchanged_weights(program: Program) -> Iterator[UnchangedWeights]:
    every = [value for value in optimizers(program) if value.is_known]
    cut = list(_cut(program, every))
    yield from cut
    if cut:
        return
    for optimizer in every:
        if optimizer.networks is None or not optimizer.steps:
            continue
        found = _late(program, optimizer) or _other(program, optimizer) or _part(program, optimizer, every)
        yield found or UnchangedWeights((optimizer.value.place,))


def _late(program: Program, optimizer: Optimizer) -> UnchangedWeights | None:
    """Wrapped after the optimizer was made, and used so."""
    assert optimizer.networks is not None
    for value in program.of("wrapped"):
        if value.name not in _LATE or value.order < optimizer.value.order:
            continue
        inner = value.argument("0")
        if inner is None or not any(same_network(inner, model) for model in optimizer.networks):
            continue
        if _is_used_in_loss(program, value):
            what = f"{optimizer.value.shown} is made before `{value.place.text}`: {_LATE[value.name]}"
            return UnchangedWeights((optimizer.value.place, value.place), what)
    return None


def _is_used_in_loss(program: Program, model: Value) -> bool:
    def inside(one: Value) -> list[Value]:
        inner = one.argument("0") or one.input if one.op in ("wrapped", "cast", "phi") else None
        return [inner] if inner is not None else []

    called = [call.arguments.get("model") for loss, _ in program.losses for call in program.origins.forwards(loss)]
    return any(model in walk(value, inside) for value in called if value is not None)


def _other(program: Program, optimizer: Optimizer) -> UnchangedWeights | None:
    """The optimizer holds a network that no loss is computed with."""
    assert optimizer.networks is not None
    losses = [trained_networks(program, loss) for loss, _ in program.losses]
    own = [network(model) for model in optimizer.networks]
    if not losses or any(loss is None for loss in losses):
        return None
    used = [model for models in losses for model in models or () if not _is_formula(program, model)]
    if not used or not all(is_network(model) for model in own) or not all(is_network(value) for value in used):
        return None
    within = [call.arguments["model"] for loss, _ in program.losses for call in _calls(loss)]
    if any(
        contains(program, value, model) or contains(program, model, value)
        for value in own
        for model in [*used, *within]
    ):
        return None
    what = (
        f"{optimizer.value.shown} holds the parameters of {own[0].shown}, and the loss is computed with "
        f"{used[0].shown}, another network: it never changes"
    )
    return UnchangedWeights((optimizer.value.place, used[0].place), what)


def _is_formula(program: Program, model: Value) -> bool:
    """A loss that is written as a module: it has no weights of its own."""
    return model.op == "instance" and not direct_parts(program, model)


def _calls(loss: Value) -> list[Value]:
    """All calls of networks behind a loss, those too whose output goes into another network."""
    return [value for value in ancestors(loss) if value.op == "forward" and not value.context.no_grad]


def _part(program: Program, optimizer: Optimizer, every: list[Optimizer]) -> UnchangedWeights | None:
    """The optimizer holds a layer, and no one the others, which nothing freezes."""
    assert optimizer.networks is not None
    heads = [value for value in optimizer.networks if value.op == "attribute" and value.name in _HEADS]
    for loss, _ in program.losses if len(heads) == len(optimizer.networks) and len(every) == 1 else ():
        for model in trained_networks(program, loss) or ():
            if model.op == "pretrained" and same_network(heads[0], model) and not _is_frozen(program, model):
                what = (
                    f"{optimizer.value.shown} holds the {heads[0].name} of {model.shown} alone: no other layer learns"
                )
                return UnchangedWeights((optimizer.value.place, model.place), what)
    for loss, _ in program.losses:
        for model in trained_networks(program, loss) or ():
            inside = [value for value in optimizer.networks if _is_inside(program, value, model)]
            if len(inside) < len(optimizer.networks) or is_held(program, model, every) or _is_frozen(program, model):
                continue
            if model.op != "instance":
                rest: list[Value] = []
            else:
                parts = direct_parts(program, model)
                rest = [
                    part
                    for part in parts
                    if not is_held(program, part, every)
                    and not any(contains(program, part, other) for other in inside)
                    and is_used(program, loss, part)
                ]
                if not rest:
                    continue
            left = ", ".join(value.shown for value in rest[:3]) or "all else"
            what = (
                f"{optimizer.value.shown} holds one part of {model.shown}: {left} never changes, and nothing freezes it"
            )
            return UnchangedWeights((optimizer.value.place, model.place), what)
    return None


def _is_inside(program: Program, part: Value, whole: Value) -> bool:
    return not same_network(part, whole) and contains(program, whole, part)


def _is_frozen(program: Program, model: Value) -> bool:
    """Whether anything of the network is set to need no gradient, or is computed without one."""
    for value, _ in gradient_switches(program.graph):
        if value.input is not None:
            target = value.input.input if value.input.op == "element" and value.input.input else value.input
            target = target.input if target.op in ("parameters", "named_parameters") and target.input else target
            if not is_network(network(target)) or contains(program, model, target) or contains(program, target, model):
                return True
    return False


# no gradient at all


def _cut(program: Program, every: list[Optimizer]) -> Iterator[UnchangedWeights]:
    for backward in program.of("backward"):
        loss = backward.input
        if loss is None or program.origins.gradient(loss) is not False:
            continue
        calls = [call for call in program.origins.forwards(loss) if call.op == "forward"]
        ours = [call for call in calls if is_held(program, call.arguments["model"], every)]
        if not ours or _is_opaque(program, loss):
            continue
        place = _where(program, loss)
        if place is not None:
            what = f"no gradient reaches the weights: `{place.text}` takes it away before `{backward.place.text}`"
            yield UnchangedWeights((place, backward.place), what, "Keep the loss attached to the forward pass.")
            return
        if all(call.context.no_grad for call in calls):
            what = f"`{ours[0].place.text}` runs under no_grad: `{backward.place.text}` has nothing to differentiate"
            yield UnchangedWeights((ours[0].place, backward.place), what, "Compute the loss outside of no_grad.")
            return
        frozen = _freeze(program, ours[0].arguments["model"])
        if frozen is not None:
            what = f"`{frozen.place.text}` freezes the network that is trained: it gets no gradient"
            yield UnchangedWeights((frozen.place, backward.place), what, "Freeze the reference, not the policy.")
            return


def _is_opaque(program: Program, loss: Value) -> bool:
    """Whether something is in a loss of which nothing is known: it may carry a gradient of its own."""

    def is_open(one: Value) -> bool:
        asked = one.op == "method" and one.input is not None and one.input.op in _OBJECTS
        return (asked or one.op in _OPAQUE) and program.kinds.of(one) is None

    return any(
        is_open(part) for part in walk(loss, until=lambda value: value.op in ("detach", "leave", "tensor", "forward"))
    )


def _where(program: Program, loss: Value) -> Place | None:
    """The operation behind which everything has a gradient: a detach, an item(), a new tensor."""
    current: Value | None = loss
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if current.op in ("detach", "leave"):
            return current.place
        if current.op == "tensor":
            return None if current.name.endswith(("as_tensor", "asarray", "from_numpy")) else current.place
        inputs = [part for part in current.inputs if program.origins.forwards(part)]
        if current.op in ("forward", "phi") or not inputs:
            return None
        current = inputs[0]
    return None


def _freeze(program: Program, model: Value) -> Value | None:
    for value, on in gradient_switches(program.graph):
        if on is False and value.input is not None:
            parameters = parameters_of(value.input)
            target = value.input if parameters is None or parameters.input is None else parameters.input
            if same_network(target, model):
                return value
    return None

"""Which network is a part of which, and which of them an optimizer holds."""

from __future__ import annotations

from assay.programs.facts.optimizer.optimizers import Optimizer
from assay.programs.facts.origin import NETWORKS, network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Instance
from assay.programs.walk import ancestors, walk

_PLAIN = ("Dropout", "ReLU", "GELU", "Tanh", "SiLU", "Softmax", "LogSoftmax", "Identity", "Flatten", "Sigmoid", "ELU")


def is_network(value: Value) -> bool:
    if value.op == "instance":
        return isinstance(value.thing, Instance) and value.thing.cls.is_module
    return value.op in NETWORKS


def has_parameters(value: Value) -> bool:
    return is_network(value) and not (value.op == "module" and value.name in _PLAIN)


def owners(program: Program, part: Value) -> list[Value]:
    """Every network above one, however far: it holds the one as an attribute or a layer."""

    def above(inner: Value) -> list[Value]:
        held_in = [inner.input] if inner.op in ("attribute", "index", "element") and inner.input is not None else []
        for user in _users(program, inner):
            if user.op == "setattr" and user.input is not None and network(user.arguments["value"]) is inner:
                held_in.append(user.input)
            elif user.op in ("module", "listing", "table"):
                held_in.append(user)
        return [network(owner) for owner in held_in]

    start = network(part)
    return [owner for owner in walk(start, above) if owner is not start and owner.op not in ("listing", "table")]


def _users(program: Program, value: Value) -> list[Value]:
    same = [part for part in program.of(value.op) if part.thing is value.thing] if value.thing is not None else [value]
    return [user for part in same for user in part.users]


def contains(program: Program, whole: Value, part: Value) -> bool:
    return same_network(whole, part) or any(same_network(owner, whole) for owner in owners(program, part))


def direct_parts(program: Program, whole: Value) -> list[Value]:
    """The networks that are attributes of one of the program's own."""
    found: list[Value] = []
    for value in program.of("setattr"):
        part = value.argument("value")
        if value.input is not None and part is not None and same_network(value.input, whole):
            inner = network(part)
            if has_parameters(inner) and not any(inner is item for item in found):
                found.append(inner)
    return found


def is_fresh(program: Program, model: Value) -> bool:
    """A layer of the script's own that nothing loads: it is there to be trained."""
    if model.op != "module" or not has_parameters(model):
        return False
    loads = (value for value in program.of("load_state_dict", "method") if value.name == "load_state_dict")
    frozen = (value for value in program.of("requires_grad_") if value.setting("1", True) is False)
    return not any(value.input is not None and same_network(value.input, model) for value in (*loads, *frozen))


def is_held(program: Program, model: Value, optimizers: list[Optimizer]) -> bool:
    """Whether an optimizer holds the network or what it is a part of."""
    return any(contains(program, value, model) for optimizer in optimizers for value in optimizer.networks or ())


def trained_networks(program: Program, loss: Value) -> list[Value] | None:
    """The networks that a loss is computed with outside of no_grad; None where one of them is not known."""
    calls = [call for call in program.origins.forwards(loss) if not call.context.no_grad]
    if not calls or any(call.op != "forward" for call in calls):
        return None
    found: list[Value] = []
    for call in calls:
        model = network(call.arguments["model"])
        if not is_network(model):
            return None
        if not any(same_network(model, value) for value in found):
            found.append(model)
    return found


def is_used(program: Program, loss: Value, part: Value) -> bool:
    """Whether the output of a layer is behind a loss."""
    return any(value.op == "forward" and contains(program, part, value.arguments["model"]) for value in ancestors(loss))

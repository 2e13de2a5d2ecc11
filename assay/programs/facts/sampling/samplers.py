"""Which network draws the tokens that a loss is computed on, and what is loaded into it."""

from __future__ import annotations

from assay.programs.facts.origin import NETWORKS, given_to, network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors, follow, walk

_NETWORKS = NETWORKS | {"wrapped"}


def original(model: Value) -> Value:
    """The network that was copied, however often."""
    return follow(
        network(model),
        lambda value: network(value.input) if value.op == "deepcopy" and value.input is not None else None,
    )


def is_trained(program: Program, model: Value) -> bool:
    return any(same_network(model, value) for value in program.origins.trained())


def draws_behind(program: Program, loss: Value) -> list[tuple[Value, Value]]:
    """(drawing, network) for the tokens that the trained networks score in a loss."""
    given = [
        value
        for call in program.origins.forwards(loss)
        if call.op == "forward" and is_trained(program, call.arguments["model"])
        for value in given_to(call)
    ]
    return [(value, model) for value in walk(given) for model in _drawer(program, value)]


def _drawer(program: Program, value: Value) -> list[Value]:
    if value.op == "generate" and value.input is not None:
        model = network(value.input)
        return [model] if model.op in _NETWORKS else []
    if value.op in ("multinomial", "sample") and value.input is not None:
        return [part for part in program.origins.networks(value.input) if part.op in _NETWORKS]
    return []


def loads_into(program: Program, model: Value) -> list[Value]:
    """Each load_state_dict into a network."""
    return [
        value for value in program.of("load_state_dict") if value.input is not None and same_network(value.input, model)
    ]


def source_of(load: Value) -> Value | None:
    """The network whose weights are loaded, where the text says."""
    given = load.argument("1") or load.argument("state_dict")
    if given is None:
        return None
    for value in ancestors(given):
        if value.op == "state_dict" and value.input is not None:
            return network(value.input)
    return None


def is_touched(program: Program, model: Value) -> bool:
    """Whether anything but load_state_dict may change its weights: a loop over its parameters, an unknown method."""
    for value in program.of("parameters", "named_parameters"):
        if value.input is None or not same_network(value.input, model):
            continue
        for user in value.users:
            if user.op in ("zip", "table") or (user.op == "call" and "zip" in user.name):
                return True
    return False

"""The optimizers of a script: what they hold, and in which order gradients are cleared, made, clipped and used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.origin import NETWORKS, network, same_network
from assay.programs.graph import Loop, Value
from assay.programs.once import once
from assay.programs.program import Program
from assay.programs.walk import ancestors, follow, walk

_SHELLS = ("wrapped", "cast")
_OPEN = ("parameter", "attribute", "index", "element", "call", "method")  # an object of which nothing is known


@dataclass(frozen=True, eq=False)
class Optimizer:
    """One optimizer and what happens to its gradients, in the order of evaluation.

    `networks`: whose parameters it holds; None where the text does not say.
    """

    value: Value
    networks: tuple[Value, ...] | None
    steps: tuple[Value, ...]
    clears: tuple[Value, ...]
    backwards: tuple[Value, ...]

    @property
    def is_known(self) -> bool:
        return self.value.op == "optimizer"


def optimizer_of(value: Value | None) -> Value | None:
    """The optimizer behind a name; None where several may be meant. What is not known stands for itself."""

    def inside(one: Value) -> list[Value]:
        held = one.input or one.argument("0") if one.op in _SHELLS else None
        return [held] if held is not None else one.inputs if one.op == "phi" else []

    options = [
        part
        for part in (walk(value, inside) if value is not None else ())
        if part.constant is not None and (part.op == "optimizer" or part.op in _OPEN)
    ]
    return options[0] if len(options) == 1 else None


def networks_held(optimizer: Value) -> tuple[Value, ...] | None:
    """The networks, or parts of them, whose parameters an optimizer was given; None where that is not all."""
    given = optimizer.argument("parameters")

    def is_network(one: Value) -> bool:
        return one.op in ("parameters", "named_parameters") and one.input is not None

    def is_open(one: Value) -> bool:
        called = one.op == "call" and not one.name.startswith("builtins.")
        return called or one.op in ("parameter", "attribute", "unknown", "method")

    def inside(one: Value) -> list[Value]:
        return [part for name, part in one.arguments.items() if name not in ("lr", "weight_decay")]

    way = (
        list(walk(given, inside, until=lambda value: is_network(value) or is_open(value))) if given is not None else []
    )
    if any(is_open(value) and not (value.op == "attribute" and value.name == "requires_grad") for value in way):
        return None
    return tuple(value.input for value in way if is_network(value) and value.input is not None) or None


def is_scheduler(step: Value) -> bool:
    def inside(one: Value) -> Value | None:
        is_shell = one.op in (*_SHELLS, "phi")
        return one.input or next((part for part in one.inputs if part.op != "phi"), None) if is_shell else None

    return step.input is not None and follow(step.input, inside).op == "scheduler"


def optimizer_of_step(step: Value) -> Value | None:
    """The optimizer of a step, given to a scaler or not."""
    inside = step.argument("1")
    if inside is not None and inside.op == "optimizer":
        return inside
    return None if is_scheduler(step) else optimizer_of(step.input)


@once
def optimizers(program: Program) -> list[Optimizer]:
    """Those of torch that the script makes, and objects that are stepped and cleared."""
    steps = [(part, optimizer_of_step(part)) for part in program.of("step")]
    clears = list(_clears(program))
    cleared = [owner for _, owner in clears if owner is not None]
    found: list[Value] = []
    for value in [*program.of("optimizer"), *(owner for _, owner in steps if owner is not None)]:
        is_one = value.op == "optimizer" or any(value is owner for owner in cleared)
        if is_one and not any(value is part for part in found):
            found.append(value)
    made: list[Optimizer] = []
    for value in found:
        networks = networks_held(value) if value.op == "optimizer" else None
        made.append(
            Optimizer(
                value,
                networks,
                tuple(step for step, of in steps if of is value),
                tuple(clear for clear, of in clears if of is value or (of is not None and _is_of(of, networks))),
                tuple(part for part in program.of("backward") if _reaches(program, part, networks)),
            )
        )
    return made


def _clears(program: Program) -> Iterator[tuple[Value, Value | None]]:
    """(event, optimizer or network) for everything that sets gradients to zero; None: not known whose."""
    for value in program.of("zero_grad"):
        yield value, optimizer_of(value.input) or value.input
    for value in program.of("setattr"):
        if value.name == "grad":
            yield value, None
    for value in program.of("method"):
        if value.name in ("zero", "zero_grads", "clear_grad", "reset_grad", "zero_gradients"):
            yield value, None
    for value in program.of("in_place", "method"):
        inner = value.input
        if inner is None or value.name not in ("zero_", "fill_", "mul_"):
            continue
        if any(part.op == "attribute" and part.name == "grad" for part in list(ancestors(inner))[:4]):
            yield value, None


def clears_of_unknown(program: Program) -> list[Value]:
    """Clears of which the text does not say whose gradients they clear: by hand, by an object of another class."""
    return [
        value
        for value, owner in _clears(program)
        if owner is None or owner.op in (*_OPEN, "phi", "instance", "library")
    ]


def _is_of(cleared: Value, networks: tuple[Value, ...] | None) -> bool:
    """model.zero_grad(), where the optimizer holds that model."""
    return networks is not None and any(same_network(cleared, model) or is_part(model, cleared) for model in networks)


def is_part(part: Value, whole: Value) -> bool:
    """Whether one network is reached through attributes of the other."""
    holders = walk(
        part, lambda value: [value.input] if value.op in ("attribute", "index", "element") and value.input else []
    )
    return any(same_network(holder, whole) for holder in holders if holder is not part)


def _reaches(program: Program, backward: Value, networks: tuple[Value, ...] | None) -> bool:
    """Whether a backward makes gradients of these networks; where the text does not say, it may."""
    if networks is None or backward.input is None:
        return True
    own = [network(model) for model in networks]
    if not program.origins.networks(backward.input) or any(model.op not in NETWORKS for model in own):
        return True
    calls = [
        value for value in ancestors(backward.input) if value.op in ("forward", "call") and not value.context.no_grad
    ]
    behind = [network(call.arguments["model"]) for call in calls if call.op == "forward"]
    if any("callee" in call.arguments for call in calls) or any(value.op not in NETWORKS for value in behind):
        return True  # a network that came in as a parameter
    return any(same_network(model, other) for model in own for other in behind) or not any(
        same_network(value, other) for value in behind for other in program.origins.trained()
    )


# order


def loop_of(step: Value, backwards: tuple[Value, ...]) -> Loop | None:
    """The innermost loop that both makes gradients and uses them."""
    for loop in reversed(step.context.loops):
        if any(loop in backward.context.loops for backward in backwards):
            return loop
    return None


def is_unconditional(event: Value, step: Value) -> bool:
    """Whether the event happens whenever the step does: in the same loops, under no further condition."""
    loops = event.context.loops
    if event.context.in_handler and not step.context.in_handler:
        return False
    if step.context.loops[: len(loops)] != loops:
        return False
    return all(step.context.is_under(branch) for branch in event.context.branches)


def events_before(step: Value, events: list[Value], loop: Loop | None) -> list[Value]:
    """What happened before a step, nearest first: in this turn, then in the turn before."""
    if loop is None:
        same = [event for event in events if event.context.calls[:1] == step.context.calls[:1]]
        return sorted((value for value in same if value.order < step.order), key=lambda value: -value.order)
    inside = [event for event in events if loop in event.context.loops]
    earlier = sorted((value for value in inside if value.order < step.order), key=lambda value: -value.order)
    later = sorted((value for value in inside if value.order > step.order), key=lambda value: -value.order)
    return earlier + later

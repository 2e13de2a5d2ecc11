"""How often a script updates on one batch of rollouts, as far as its loops say."""

from __future__ import annotations

from assay.programs.facts.optimizer.optimizers import is_scheduler
from assay.programs.facts.origin import given_to
from assay.programs.facts.ratio import Difference
from assay.programs.graph import UNKNOWN, Loop, Value
from assay.programs.program import Program
from assay.programs.walk import loop_source, peel, walk

# what may give other data in each turn of a loop
_OPAQUE = frozenset({"call", "method", "generate", "multinomial", "sample", "unknown", "exception", "super", "element"})
_HARMLESS = ("permutation", "shuffle", "randperm", "size", "dim", "numel", "random", "choice", "default_rng", "arange")


def turns(loop: Loop) -> int | None:
    """How often a loop over a range runs; None where the text does not say."""
    return Loop(loop.place, loop_source(loop)).turns


def is_counted(loop: Loop) -> bool:
    """`for _ in range(epochs)`: a loop that only counts."""
    source = peel(loop.source, ("progress",))
    return source is not None and source.op == "range" and "step" not in source.arguments


def epochs_over(program: Program, call: Value) -> Loop | None:
    """The loop that calls a network again on the same data and updates it in each turn."""
    for loop in call.context.loops:
        if not is_counted(loop) or turns(loop) in (0, 1):
            continue
        if not any(loop in step.context.loops for step in program.of("step") if not is_scheduler(step)):
            continue
        if is_same_data(call, loop):
            return loop
    return None


def is_split(loop: Loop) -> bool:
    """Whether a loop runs over mini-batches: `range(0, n, size)`, the pieces of a chunk() or a split()."""
    source = loop_source(loop)
    if source is None:
        return False
    return source.op in ("chunk", "split") or (source.op == "range" and "step" in source.arguments)


def parts_of_rollout(program: Program, call: Value) -> Loop | None:
    """The loop over mini-batches of tokens that were drawn before it, with an update in each turn."""
    for loop in call.context.loops:
        steps = [value for value in program.of("step") if loop in value.context.loops and not is_scheduler(value)]
        unconditional = [step for step in steps if step.context.branches == call.context.branches]
        if not is_split(loop) or not unconditional:
            continue
        drawn = [value for value in walk(given_to(call)) if value.op in ("generate", "multinomial", "sample")]
        if drawn and not any(loop in draw.context.loops for draw in drawn):
            return loop
    return None


def is_same_data(call: Value, loop: Loop) -> bool:
    """Whether what a network is given in a loop is made before it; picking rows of it does not count as making."""
    given = [part for name, part in call.arguments.items() if name not in ("model", "output", "callee")]

    def made_in_loop(one: Value) -> list[Value]:
        return [part for part in one.inputs if part.constant is UNKNOWN] if loop in one.context.loops else []

    def is_new(one: Value) -> bool:
        if one.op == "phi" and one.name == "turn" and one.place == loop.place:
            return True
        makes = loop in one.context.loops and one.op in _OPAQUE and not _is_pick(one, loop)
        return makes and not one.name.endswith(_HARMLESS)

    return bool(given) and not any(is_new(value) for value in walk(given, made_in_loop))


def _is_pick(value: Value, loop: Loop) -> bool:
    """An element of what a loop within this one runs over: a mini-batch."""
    inner = value.context.loops[value.context.loops.index(loop) + 1 :]
    return value.op == "element" and any(part.source is value.input for part in inner)


def are_several(program: Program, one: Difference) -> bool:
    """Whether the policy is updated between what the old and the new log-probs are computed by."""
    old = [loop for call in program.origins.forwards(one.right) for loop in call.context.loops]
    for call in program.origins.forwards(one.left):
        if epochs_over(program, call) is not None:
            return True
        if old and any(loop not in old and turns(loop) not in (0, 1) for loop in call.context.loops):
            return True
    return False

"""Losses that are differentiated part by part before one step: what each part is divided by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.kinds import Kind
from assay.programs.facts.optimizer.optimizers import Optimizer, optimizers
from assay.programs.graph import UNKNOWN, Loop, Value
from assay.programs.program import Program
from assay.programs.read.things import Table
from assay.programs.walk import ancestors, follow, peel
from assay.verdict import Place

_SAME = ("neg", "cast", "scaled", "squeeze", "view", "reshape")
_REPEATS = ("list_repeat", "repeat", "repeat_interleave", "expand", "generate")
_SIZES = ("numel", "size", "shape", "dim")
_COUNTED = ("accum", "micro", "grad_acc", "n_parts", "num_parts", "n_chunks", "num_chunks")


@dataclass(frozen=True, eq=False)
class AccumulatedPart:
    """A backward that runs several times before a step. `count`: how often, where the text names it.

    `engine_divides`: accelerate or deepspeed divides the loss by the number of parts itself.
    """

    backward: Value
    step: Value
    loop: Loop
    count: Value | None
    engine_divides: bool = False


@dataclass(frozen=True, eq=False)
class Share:
    """How the loss of a part is reduced: a mean or a sum, and what it is divided by and multiplied with after that."""

    reduction: Value
    divisors: tuple[Value, ...]
    scales: tuple[Value, ...]


def parts(program: Program) -> Iterator[AccumulatedPart]:
    reported: set[int] = set()
    engines = [value for value in program.of("call") if value.name.rpartition(".")[2] == "Accelerator"]
    for backward in program.of("backward"):
        if (part := _of_deepspeed(program, backward)) is not None and _is_policy(
            program, part.backward.arguments["input"]
        ):
            reported.add(id(backward))
            yield part
    for optimizer in optimizers(program):
        for backward in optimizer.backwards:
            if id(backward) in reported or backward.input is None or not _is_policy(program, backward.input):
                continue
            part = _of_engine(program, optimizer, backward, engines) or _of_backward(optimizer, backward)
            if part is not None:
                reported.add(id(backward))
                yield part


def shares(program: Program) -> Iterator[tuple[AccumulatedPart, Share]]:
    """Parts whose loss shows how it is averaged; once for each place of a backward."""
    seen: set[Place] = set()
    for part in parts(program):
        share = share_of(program, part.backward.arguments["input"])
        if share is not None and part.backward.place not in seen:
            seen.add(part.backward.place)
            yield part, share


def _is_policy(program: Program, loss: Value) -> bool:
    return any(term.is_policy for term in program.terms.of(loss))


def _of_engine(program: Program, optimizer: Optimizer, backward: Value, engines: list[Value]) -> AccumulatedPart | None:
    """accelerate's `with accelerator.accumulate(model)`."""
    loops = backward.context.loops
    if len(engines) != 1 or not loops or not any(value.name == "accumulate" for value in program.of("method")):
        return None
    count = engines[0].argument("gradient_accumulation_steps")
    steps = [step for step in optimizer.steps if step.context.loops == loops]
    if count is None or count.constant == 1 or not steps:
        return None
    return AccumulatedPart(backward, steps[0], loops[-1], count, "engine" in backward.arguments)


def _of_deepspeed(program: Program, backward: Value) -> AccumulatedPart | None:
    """deepspeed's engine.backward(loss): it divides by the steps of its configuration unless scale_wrt_gas=False."""
    engine, loops = backward.argument("engine"), backward.context.loops
    if engine is None or engine.op != "wrapped" or engine.name != "deepspeed.initialize" or not loops:
        return None
    config = engine.argument("config") or engine.argument("config_params")
    table = config.thing if config is not None else None
    count = table.entries.get("gradient_accumulation_steps") if isinstance(table, Table) else None
    steps = [value for value in program.of("step") if value.input is engine and value.context.loops == loops]
    if count is None or count.constant == 1 or not steps or backward.input is None:
        return None
    return AccumulatedPart(backward, steps[0], loops[-1], count, backward.setting("scale_wrt_gas", True) is True)


def _of_backward(optimizer: Optimizer, backward: Value) -> AccumulatedPart | None:
    loops = backward.context.loops
    if not loops or "engine" in backward.arguments:
        return None  # deepspeed and others divide as they are configured
    called = backward.context.calls[:1]
    steps = [value for value in optimizer.steps if value.order > backward.order and value.context.calls[:1] == called]
    inside = [value for value in steps if value.context.loops[: len(loops)] == loops]
    if inside:
        count = _every(inside[0], backward)
        return AccumulatedPart(backward, inside[0], loops[-1], count) if count is not None else None
    for step in steps:
        depth = len(step.context.loops)
        if depth < len(loops) and loops[:depth] == step.context.loops:
            loop = loops[depth]
            if any(loop in value.context.loops for value in optimizer.steps):
                return None
            return AccumulatedPart(backward, step, loop, _turns(loop))
    return None


def _every(step: Value, backward: Value) -> Value | None:
    """n of `if (i + 1) % n == 0: optimizer.step()`."""
    for branch in step.context.branches:
        if backward.context.is_under(branch):
            continue
        for value in list(ancestors(branch.condition))[:12]:
            if value.op == "mod" and value.argument("other") is not None:
                return value.argument("other")
    return None


def _turns(loop: Loop) -> Value | None:
    source = _listed(loop)
    if source is None:
        return None
    if source.op == "range" and "step" not in source.arguments:
        return source.argument("stop")
    if source.op == "chunk":
        return source.argument("chunks")
    return None


def share_of(program: Program, loss: Value) -> Share | None:
    """The outermost reduction of a loss, and the scalars around it; None where branches decide."""
    divisors: list[Value] = []
    scales: list[Value] = []
    current: Value | None = loss
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        other = current.argument("other")
        if current.op in ("mean", "sum", "nanmean"):
            return Share(current, tuple(divisors), tuple(scales))
        if current.op == "div" and other is not None:
            divisors += _factors(other)
            current = current.input
        elif current.op == "mul" and current.input is not None and other is not None:
            ours = program.terms.is_policy(current.input)
            scales.append(other if ours else current.input)
            current = current.input if ours else other
        elif current.op in ("add", "sub") and current.input is not None and other is not None:
            ours = _is_policy(program, current.input)
            current = current.input if ours else other
        elif current.op in _SAME:
            current = current.input
        else:
            return None
    return None


def _factors(value: Value) -> list[Value]:
    """The factors of a product, in front of a clamp as well."""
    current = peel(value, ("clamp", "cast", "leave", "maximum"))
    if current.op == "mul" and current.input is not None and (other := current.argument("other")) is not None:
        return [*_factors(current.input), *_factors(other)]
    return [current]


def is_count(value: Value, part: AccumulatedPart) -> bool:
    """Whether a number is the number of parts."""
    if part.count is not None:
        if value is part.count:
            return True
        number = part.count.constant
        if isinstance(number, int) and number > 1 and value.constant == number and _is_setting(value):
            return True
    if value.op == "len" and value.input is not None and value.input is _listed(part.loop):
        return True
    if _is_quotient(value, _listed(part.loop)):
        return True
    named = [*value.names, value.name, value.place.text]
    return _is_setting(value) and any(word in name.lower() for name in named for word in _COUNTED)


def _is_quotient(value: Value, source: Value | None) -> bool:
    """n // size, or ceil(n / size), of a loop over range(0, n, size)."""
    step = source.argument("step") if source is not None and source.op == "range" else None

    def inside(value: Value) -> Value | None:
        is_form = value.op in ("cast", "leave", "maximum") or value.name in ("math.ceil", "builtins.max")
        return value.input or value.argument("0") if is_form else None

    value = follow(value, inside)
    by = value.argument("other") if value.op in ("floordiv", "div") else None
    if step is None or by is None:
        return False
    return by is step or (step.constant is not UNKNOWN and by.constant == step.constant)


def _listed(loop: Loop) -> Value | None:
    return peel(loop.source, ("progress", "enumerate", "reversed"))


def _is_setting(value: Value) -> bool:
    return value.constant is not UNKNOWN or value.op in ("config", "attribute", "parameter", "index", "len", "neg")


def is_own(value: Value, part: AccumulatedPart) -> bool:
    """Whether a divisor is counted from the data of this part."""
    if value.constant is not UNKNOWN or part.loop not in value.context.loops:
        return False
    return any(part.loop in item.context.loops and _is_of_part(item) for item in ancestors(value))


def _is_of_part(value: Value) -> bool:
    if value.op == "method":
        return value.name not in _SIZES
    if value.op == "listing":
        return "slice" in value.arguments
    return value.op in ("index", "element", "forward", "call", "generate", "multinomial", "phi", "gather")


def is_of_whole(value: Value, part: AccumulatedPart) -> bool:
    """Whether a divisor is a count of tokens or rows of the whole batch."""
    if value.constant is not UNKNOWN or is_count(value, part) or is_own(value, part):
        return False
    return any(item.op in ("sum", "len") or item.name in _SIZES for item in ancestors(value))


def is_rows(value: Value, part: AccumulatedPart) -> bool:
    """Whether a setting is the number of rows of a part: its data are repeated that often in the loop."""
    if not _is_setting(value) or is_count(value, part):
        return False
    return any(user.op in _REPEATS and part.loop in user.context.loops for user in value.users)


def is_mean(share: Share, part: AccumulatedPart) -> bool:
    """Whether the loss of a part is a mean over that part."""
    if share.reduction.op in ("mean", "nanmean"):
        return True
    full = "dim" not in share.reduction.arguments
    return full and any(is_own(divisor, part) or is_rows(divisor, part) for divisor in share.divisors)


def _multiplies(factor: Value | None, value: Value | None, depth: int = 6) -> bool:
    """Whether a value is a product with this factor: (x * mask[rows]) with mask[rows]."""
    if factor is None or value is None or depth == 0:
        return False
    if value.op == "mul":
        return any(_is_same_pick(part, factor) or _multiplies(factor, part, depth - 1) for part in value.inputs)
    return value.op in _SAME and _multiplies(factor, value.input, depth - 1)


def _is_same_pick(one: Value, other: Value) -> bool:
    if one is other:
        return True
    if one.op != "index" or other.op != "index" or one.arguments.keys() != other.arguments.keys():
        return False
    return all(one.arguments[name] is other.arguments[name] for name in one.arguments)


def token_mean(program: Program, share: Share, part: AccumulatedPart) -> Value | None:
    """What shows that it is a mean over the tokens of the part: the mask's own sum, or a selection by the mask."""
    reduction = share.reduction
    if "dim" in reduction.arguments:
        return None
    if reduction.op == "sum":
        for divisor in share.divisors:
            if divisor.op != "sum" or "dim" in divisor.arguments or not is_own(divisor, part):
                continue
            if program.kinds.is_a(divisor.input, Kind.MASK) or _multiplies(divisor.input, reduction.input):
                return divisor
        return None
    inner = reduction.input
    if inner is not None and inner.op == "masked_select":
        return inner
    if inner is not None and inner.op == "index":
        keys = inner.keys
        if len(keys) == 1 and program.kinds.is_a(keys[0], Kind.MASK):
            return inner
    return None

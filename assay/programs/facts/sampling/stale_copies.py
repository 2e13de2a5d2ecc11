"""Copies of the policy that draw tokens: whether the trained weights reach them, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.kinds import Kind
from assay.programs.facts.origin import given_to, same_network
from assay.programs.facts.ratio import differences, uses
from assay.programs.facts.sampling.samplers import draws_behind, is_touched, is_trained, loads_into, original, source_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors, follow, walk
from assay.verdict import Place

# what an engine does besides being fed with weights
_READS = ("generate", "chat", "setattr", "phi", "forward")
_HARMLESS_METHODS = ("get_tokenizer", "sleep", "wake_up")


@dataclass(frozen=True)
class Sampler:
    """Something that draws the tokens of a loss. `what`: "" where it has the trained weights."""

    places: tuple[Place, ...]
    what: str = ""


def samplers(program: Program) -> Iterator[Sampler]:
    reported: set[Place] = set()
    for loss, terms in program.losses:
        is_policy = any(term.is_policy for term in terms)
        if not is_policy or not program.origins.trained():
            continue
        for drawing, model in draws_behind(program, loss):
            if drawing.place in reported:
                continue
            reported.add(drawing.place)
            if is_trained(program, model):
                continue
            yield from _of_copy(program, drawing, model)
        yield from _of_engines(program, loss, reported)


def _of_copy(program: Program, drawing: Value, model: Value) -> Iterator[Sampler]:
    if not _is_copy(program, model) or is_touched(program, model):
        return
    loads = [
        value for value in loads_into(program, model) if _is_repeated(value, drawing) and not _is_once(value, drawing)
    ]
    if any((source := source_of(load)) is None or not is_trained(program, source) for load in loads):
        return
    places = (drawing.place, model.place)
    swallowed = [load for load in loads if load.context.handled]
    if not loads:
        if drawing.context.loops and _steps_in(program, drawing) and not _is_made_anew(model, drawing):
            what = f"`{drawing.place.text}` samples with a copy of the policy that never gets the trained weights"
            yield Sampler((model.place, drawing.place), what)
    elif len(swallowed) == len(loads):
        what = f"an error of `{swallowed[0].place.text}` is swallowed: the sampler may keep its first weights for ever"
        yield Sampler((swallowed[0].place, drawing.place), what)
    else:
        lag = min((_lag(load, drawing) for load in loads), default=1)
        if lag > 1 and not _is_corrected(program, model):
            what = (
                f"`{loads[0].place.text}` sends the weights every {lag} steps, and nothing corrects for a sampler that "
                "is behind"
            )
            yield Sampler((loads[0].place, drawing.place), what)
        else:
            yield Sampler(places)


def _is_copy(program: Program, model: Value) -> bool:
    """A deepcopy of a trained network, or one that was given its weights once."""
    first = original(model)
    if first is not model and is_trained(program, first):
        return True
    sources = [source_of(value) for value in loads_into(program, model)]
    return any(source is not None and is_trained(program, source) for source in sources)


def _is_repeated(load: Value, drawing: Value) -> bool:
    return not drawing.context.loops or any(loop in drawing.context.loops for loop in load.context.loops)


def _is_once(load: Value, drawing: Value) -> bool:
    """`if step == 0`: in one turn alone."""
    for branch in load.context.branches:
        test = branch.condition
        if drawing.context.is_under(branch) or test.op != "eq" or not branch.side:
            continue
        sides = [part for part in test.inputs if part.op == "element"]
        counted = [side for side in sides if any(loop.source is side.input for loop in drawing.context.loops)]
        if counted and any(isinstance(part.constant, int) for part in test.inputs):
            return True
    return False


def _is_made_anew(model: Value, drawing: Value) -> bool:
    """Whether the copy is taken in the loop in which it draws: as old as one turn, at most."""
    return any(loop in drawing.context.loops for loop in model.context.loops)


def _steps_in(program: Program, drawing: Value) -> bool:
    return any(loop in value.context.loops for value in program.of("step") for loop in drawing.context.loops[:1])


def _lag(load: Value, drawing: Value) -> int:
    """n of `if step % n == 0`."""
    for branch in load.context.branches:
        if drawing.context.is_under(branch):
            continue
        if branch.condition.op == "phi":  # `or`
            return 1
        for value in list(ancestors(branch.condition))[:12]:
            number = value.setting("other") if value.op == "mod" else None
            if isinstance(number, int) and not isinstance(number, bool):
                return number
        return 1
    return 1


def _is_corrected(program: Program, model: Value) -> bool:
    """Whether the sampler's own log-probs divide: as the old ones, or in an importance weight."""
    for use in uses(program):
        for difference in differences(program, use.ratio):
            if any(same_network(model, other) for other in program.origins.networks(difference.right)):
                return True
    behind = {id(part) for loss, _ in program.losses for part in ancestors(loss)}
    for value in program.of("sub"):
        right = value.argument("other")
        is_ratio = program.kinds.is_a(value, Kind.LOG_RATIO) or program.kinds.is_a(value.input, Kind.LOGPROBS)
        if right is None or id(value) not in behind or not is_ratio:
            continue
        if any(same_network(model, part) for part in program.origins.networks(right)):
            return True
    return False


def _of_engines(program: Program, loss: Value, reported: set[Place]) -> Iterator[Sampler]:
    """An engine of vLLM that is built once and only asked."""
    given = [value for call in program.origins.forwards(loss) for value in given_to(call)]
    for value in walk(given):
        engine = value.input if value.op in ("generate", "chat") else None
        if engine is None or value.place in reported:
            continue
        reported.add(value.place)
        made = _engine(engine)
        if made is None or not _steps_in(program, value) or made.context.loops:
            continue
        if _is_only_asked(made) and not _is_fed(program):
            what = f"`{made.place.text}` samples all through training and never gets the trained weights"
            yield Sampler((made.place, value.place), what)


def _engine(value: Value) -> Value | None:
    value = follow(
        value,
        lambda current: (
            next((part for part in current.inputs if part.op != "constant"), None) if current.op == "phi" else None
        ),
    )
    is_engine = value.op == "call" and value.name.startswith("vllm") and value.name.endswith(".LLM")
    return value if is_engine else None


def _is_only_asked(engine: Value) -> bool:
    for user in engine.users:
        if user.op == "generate" and any("lora" in name for name in user.arguments):
            return False
        if user.op == "attribute":
            if user.users:
                return False
        elif user.op not in _READS and not (user.op == "method" and user.name in _HARMLESS_METHODS):
            return False
    return True


def _is_fed(program: Program) -> bool:
    """Whether anything in the script speaks of sending weights."""
    words = ("weight", "sync", "collective_rpc", "load_lora", "update_param", "broadcast", "save_pretrained")
    return any(word in value.name for value in program.of("call", "method", "load_weights") for word in words)

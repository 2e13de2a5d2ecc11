"""Rewards in a script: what is the same for every completion, what is drawn by chance, what always raises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.advantages.advantages import policy_weights
from assay.programs.facts.kinds import Kind
from assay.programs.facts.sampling.tokens import is_text
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors, peel, walk

_CHANCE = frozenset(
    "random.random random.uniform random.gauss random.randint random.choice random.betavariate numpy.random.rand "
    "numpy.random.randn numpy.random.random numpy.random.uniform numpy.random.normal torch.rand torch.randn "
    "torch.rand_like torch.randn_like torch.randint numpy.random.randint".split()
)
_SUMS = frozenset(
    "add sub mul div tensor listing phi cast leave view reshape flatten unsqueeze squeeze index expand "
    "repeat_interleave stack cat mean std sum clone detach neg element clamp sqrt pow var setitem".split()
)
_NOISE = ("randn", "randn_like", "normal", "gauss")
_DRAWS = frozenset("generate multinomial sample rsample".split())
_OF_TEXT = frozenset("replace strip lstrip rstrip lower upper splitlines startswith endswith removeprefix".split())
_FILLS = frozenset("zeros empty full ones zeros_like empty_like full_like ones_like".split())
_FORMS = frozenset("setitem index phi view reshape flatten clone squeeze unsqueeze".split())
_SHAPED = frozenset("tensor cast view reshape unsqueeze squeeze index expand".split())
_FRACTIONS = frozenset("exp div sigmoid tanh sqrt mean std softmax rsqrt reciprocal log".split())
_MOST_VALUES = 200
_MOST_BEHIND = 3_000
_LONGEST_PATTERN = 400  # characters of a pattern
FAINT_NOISE = 0.05  # a factor on noise that only breaks ties


@dataclass(frozen=True, eq=False)
class Flaw:
    value: Value
    reason: str
    fix: str = ""


def numbers(program: Program) -> list[Value]:
    """What the weights of the policy's gradient are computed from by arithmetic alone."""

    def is_end(one: Value) -> bool:
        is_known = program.kinds.is_a(one, Kind.LOGPROBS, Kind.MASK, Kind.RATIO, Kind.LOG_RATIO)
        return one.op not in _SUMS or is_known or (one.op == "mul" and any(_is_faint(part) for part in one.inputs))

    def terms(one: Value) -> list[Value]:
        skipped = ("dim", "keepdim", "key") if one.op != "index" else tuple("01234")
        return [part for name, part in one.arguments.items() if name not in skipped]

    return list(islice(walk(policy_weights(program), terms, until=is_end), _MOST_VALUES))


def _is_faint(value: Value) -> bool:
    return isinstance(value.constant, int | float) and abs(value.constant) < FAINT_NOISE


def random_rewards(program: Program) -> Iterator[Flaw]:
    for value in numbers(program):
        if value.op == "call" and value.name in _CHANCE and not _judges_too(program, value):
            yield Flaw(value, "the reward is drawn by chance: it says nothing of the completion")


def _judges_too(program: Program, chance: Value) -> bool:
    """Whether a reward with chance in it is made of drawn tokens or actions as well: of an environment's state, say."""
    if _is_exploration(program, chance):
        return True
    for factor in policy_weights(program):
        behind = list(islice(ancestors(factor), _MOST_BEHIND))
        if not any(value is chance for value in behind):
            continue
        drawn = [
            value
            for value in behind
            if value.op in _DRAWS or program.kinds.is_a(value, Kind.SAMPLED) or _is_exploration(program, value)
        ]
        # one number that is drawn where the reward is made is not a state
        if drawn and (not chance.name.startswith("random.") or _is_state(chance, drawn)):
            return True
    return False


def _is_state(chance: Value, drawn: list[Value]) -> bool:
    """Whether it is kept, was drawn before the actions, or is seen by the policy: where an episode starts, the wind."""
    made = walk(chance, lambda value: [user for user in value.users if user.op in _SUMS or user.op == "setattr"])
    if any(value.op == "setattr" for value in islice(made, _MOST_VALUES)):
        return True
    return any(chance.order < draw.order or chance in islice(ancestors(draw), _MOST_BEHIND) for draw in drawn)


def _is_exploration(program: Program, chance: Value) -> bool:
    """Noise on the output of a network: the draw of an action, mean + std * noise."""
    scaled = [user for user in chance.users if user.op == "mul"]
    return (
        chance.op == "call"
        and chance.name.rpartition(".")[2] in _NOISE
        and any(
            user.op == "add" and any(program.origins.forwards(part) for part in user.inputs if part is not noise)
            for noise in (chance, *scaled)
            for user in noise.users
        )
    )


def unequal_comparisons(program: Program) -> Iterator[Flaw]:
    """A text that is compared with a list."""
    decides = {
        id(branch.condition)
        for value in program.values
        if id(value) in program.policy_factor_ids
        for branch in value.context.branches
    }
    for value in program.of("eq", "ne"):
        if id(value) not in program.policy_factor_ids and id(value) not in decides:
            continue
        sides = [value.arguments["input"], value.arguments["other"]]
        for side, other in (sides, sides[::-1]):
            if isinstance(side.thing, Listing) and side.op == "listing" and _is_text(other):
                yield Flaw(value, "a text is never equal to a list: this part of the reward is the same for all")


def swallowed_errors(program: Program) -> Iterator[Flaw]:
    """Calls in a `try` that raise each time, whose handler then gives the same number to every completion."""
    swallowed = {
        value.context.functions
        for value in program.values
        if value.context.in_handler and value.op in ("constant", "neg") and isinstance(value.constant, int | float)
    }
    for value in program.values:
        if not value.context.handled or value.context.in_handler or value.context.functions not in swallowed:
            continue
        reason = _raises(value)
        if reason:
            yield Flaw(value, f"{reason}, and the handler hides it: every completion gets the handler's number")


def _raises(value: Value) -> str:
    inner = value.input
    if value.op == "misfit":
        return f"{value.name}() takes fewer arguments"
    if inner is None:
        return ""
    if value.op == "method" and value.name == "group" and _has_no_group(value, inner):
        return "the pattern has no such group"
    if value.op == "index" and isinstance(value.setting("0"), str) and _is_text(inner):
        return "a text has no such key"
    given = [part for name, part in value.arguments.items() if name.isdigit() and name != "0"]
    if value.op == "method" and value.name in _OF_TEXT and isinstance(inner.thing, Listing) and inner.op == "listing":
        return f"a list has no {value.name}()"
    if value.op == "method" and _is_text(inner):
        if value.name in ("strip", "lstrip", "rstrip") and len(given) > 1:
            return f"{value.name}() takes one argument"
        if value.name in ("count", "startswith", "endswith", "find") and given and _is_number(given[0]):
            return f"{value.name}() of a text wants a text, not a number"
    if value.op == "cast" and value.name in ("int", "float") and inner.op == "listing":
        return f"{value.name}() takes no list"
    return ""


def _has_no_group(asked: Value, match: Value) -> bool:
    """found.group(2) of a pattern with one pair of parentheses."""
    number = asked.setting("1")
    if not isinstance(number, int) or isinstance(number, bool):
        return False
    if match.op == "call" and match.name in ("re.search", "re.match", "re.fullmatch"):
        pattern = match.argument("0") or match.argument("pattern")
    elif match.op == "method" and match.name in ("search", "match", "fullmatch") and match.input is not None:
        compiled = match.input
        is_pattern = compiled.op in ("call", "wrapped") and "torch" not in compiled.name
        pattern = compiled.argument("0") or compiled.input if is_pattern else None
    else:
        return False
    if pattern is None or not isinstance(pattern.constant, str) or len(pattern.constant) > _LONGEST_PATTERN:
        return False
    try:
        return re.compile(pattern.constant).groups < number
    except (re.error, RecursionError, OverflowError):
        return False


def _is_number(value: Value) -> bool:
    is_number = isinstance(value.constant, int | float) and not isinstance(value.constant, bool)
    return is_number or (value.op == "cast" and value.name in ("int", "float"))


def _is_text(value: Value, depth: int = 6) -> bool:
    if depth == 0:
        return False
    if is_text(value) or isinstance(value.constant, str):
        return True
    if value.op == "add":
        return any(_is_text(part, depth - 1) for part in value.inputs)
    if value.op == "phi":
        return bool(value.inputs) and all(_is_text(part, depth - 1) for part in value.inputs)
    if value.op == "element" and value.input is not None:
        return value.input.op in ("batch_decode",)
    return (
        value.op == "method"
        and value.name in (*_OF_TEXT, "group")
        and value.input is not None
        and (value.name != "group" and _is_text(value.input, depth - 1))
    )


def constant_rewards(program: Program) -> Iterator[Flaw]:
    """Rewards that are one number, whatever the completion is."""
    for value in numbers(program):
        if value.op == "tensor":
            data = value.argument("data")
            elements = data.thing.elements if data is not None and isinstance(data.thing, Listing) else []
            repeated = data is not None and (data.op == "list_repeat" or not getattr(data.thing, "exact", True))
            is_one = len(elements) == 1 and repeated and isinstance(elements[0].constant, int | float)
            if is_one and not _is_factor(value):
                yield Flaw(value, "every reward is the same number")


def _is_factor(value: Value) -> bool:
    """Whether numbers only weigh others: rewards * torch.tensor(weights)."""
    users = [
        user
        for user in walk(value, lambda current: current.users if current.op in _SHAPED else ())
        if user.op not in _SHAPED
    ]
    return bool(users) and all(user.op in ("mul", "div", "matmul") for user in users)


def cut_off_rewards(program: Program) -> Iterator[Flaw]:
    """Rewards with fractions that are written into a tensor of integers: reward = torch.zeros_like(actions)."""
    for value in program.of("setitem"):
        written = value.argument("value")
        if id(value) not in program.policy_factor_ids or written is None or value.input is None:
            continue
        if _has_fractions(written) and _is_of_integers(program, value.input):
            reason = "fractions are cut off, since it is written into a tensor of integers"
            yield Flaw(value, reason, "Make the tensor of rewards with dtype=torch.float.")


def _has_fractions(value: Value) -> bool:
    inner = peel(value, ("leave", "cast", "index", "neg", "squeeze"))
    if isinstance(inner.constant, float):
        return inner.constant != int(inner.constant)
    return inner.op in _FRACTIONS


def _is_of_integers(program: Program, value: Value, depth: int = 8) -> bool:
    """A tensor that is made like drawn tokens or actions, or as one of integers."""
    last = value.name.rpartition(".")[2]
    dtype = value.argument("dtype")
    if depth == 0:
        return False
    if dtype is not None:
        return dtype.place.text.rpartition(".")[2] in ("long", "int", "int64", "int32") and last in _FILLS
    if value.op == "call" and last.endswith("_like") and last in _FILLS:
        inner = value.argument("0") or value.argument("input")
        return inner is not None and _is_of_integers(program, inner, depth - 1)
    if value.op in _FORMS:
        inner = value.input or value.argument("0")
        return inner is not None and _is_of_integers(program, inner, depth - 1)
    return value.op in ("multinomial", "generate") or (
        value.op != "cast"
        and program.kinds.is_a(value, Kind.SAMPLED)
        and not any(part.op == "cast" for part in islice(ancestors(value), 20))
    )

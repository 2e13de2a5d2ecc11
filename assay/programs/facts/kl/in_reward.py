"""KL penalties that are part of the reward: PPO subtracts beta * (policy - reference) from it, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.kinds import PASSES, Kind
from assay.programs.facts.kl.penalties import policy_and_reference
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.origin import same_network
from assay.programs.facts.ratio import Difference, before_detach, differences, uses
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.walk import walk

_KEEPS = (*PASSES, "div", "index", "sum", "mean", "clamp")
_MOST_VALUES = 3000


@dataclass(frozen=True, eq=False)
class RewardPenalty:
    """A difference of log-probs in the reward. `sign` is that of policy - reference there; right is -1."""

    difference: Difference
    policy: Value
    reference: Value
    sign: int
    is_exchanged: bool  # written as reference - policy
    is_itself: bool = False  # both sides are the trained network's


def reward_penalties(program: Program) -> list[RewardPenalty]:
    targets = {id(factor) for use in uses(program) if use.loss is not None for factor in use.factors}
    actors = [
        model
        for use in uses(program)
        for difference in differences(program, use.ratio)
        for model in program.origins.networks(difference.left)
    ]
    for _, terms in program.losses:
        for term in terms:
            if term.kind is TermKind.POLICY and program.kinds.is_a(term.core, Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS):
                targets |= {id(factor) for factor in term.factors}
                actors += program.origins.networks(term.core)
    found: list[RewardPenalty] = []
    for value in program.of("sub"):
        if not targets or not program.kinds.is_a(value, Kind.LOG_RATIO) or program.origins.gradient(value) is not False:
            continue
        known = [
            difference
            for difference in differences(program, value)
            if difference.value is value and difference.is_straight
        ]
        sign = _sign_in_reward(value, targets) if known else 0
        if not sign:
            continue
        sides = policy_and_reference(program, known[0])
        if sides is not None:
            exchanged = sides[0] is not known[0].left
            if _is_by(program, sides[0], actors):
                turned = -sign if exchanged else sign
                found.append(RewardPenalty(known[0], *sides, turned, exchanged))
        elif _is_itself(program, known[0], actors):
            found.append(RewardPenalty(known[0], known[0].left, known[0].right, sign, False, is_itself=True))
    return found


def _is_by(program: Program, value: Value, actors: list[Value]) -> bool:
    return any(same_network(model, other) for model in program.origins.networks(value) for other in actors)


def _is_itself(program: Program, one: Difference, actors: list[Value]) -> bool:
    """Two passes of the trained network over the same tokens, one after the other with no update between them."""
    left, right = (program.origins.forwards(side) for side in (one.left, one.right))
    calls = [*left, *right]
    if len(left) != 1 or len(right) != 1 or left[0] is right[0] or before_detach(one.left) is before_detach(one.right):
        return False
    if (
        any(call.op != "forward" or program.origins.is_switched(call) for call in calls)
        or left[0].place != right[0].place
    ):
        return False
    if not all(_is_by(program, side, actors) for side in (one.left, one.right)):
        return False
    given = [{name: arg for name, arg in call.arguments.items() if name.startswith("given_")} for call in calls]
    if given[0].keys() != given[1].keys() or not all(
        _is_same(argument, given[1][name]) for name, argument in given[0].items()
    ):
        return False
    if left[0].context.loops[:-1] != right[0].context.loops[:-1]:
        return False
    first, last = sorted(call.order for call in calls)
    return not any(first < step.order < last for step in program.of("step"))


def _is_same(one: Value, other: Value, depth: int = 14) -> bool:
    """Whether two values are the same, or made by the same text of the same values: x[i : i + n] in two loops."""
    if one is other:
        return True
    if depth == 0 or one.op != other.op or one.arguments.keys() != other.arguments.keys() or one.op == "phi":
        return False
    if one.constant is not UNKNOWN or not one.arguments:
        return one.constant == other.constant and one.name == other.name and one.constant is not UNKNOWN
    return one.name == other.name and all(
        _is_same(value, other.arguments[name], depth - 1) for name, value in one.arguments.items()
    )


def _sign_in_reward(value: Value, targets: set[int]) -> int:
    """The sign with which a value is added to something that becomes an advantage; 0 where it is not."""
    waiting, seen = [(value, 1)], {id(value)}
    while waiting:
        current, sign = waiting.pop(0)
        for user in current.users:
            if id(user) in seen:
                continue
            seen.add(id(user))
            is_input = user.input is current
            if user.op in ("add", "sub", "setitem") and (is_input or user.argument("other") is current):
                if _flows_into(user, targets):
                    return -sign if user.op == "sub" and not is_input else sign
            elif user.op == "neg":
                waiting.append((user, -sign))
            elif user.op == "mul":
                other = user.argument("other") if is_input else user.input
                negative = other is not None and _is_negative(other)
                waiting.append((user, -sign if negative else sign))
            elif user.op in _KEEPS and is_input:
                waiting.append((user, sign))
    return 0


def _is_negative(value: Value) -> bool:
    if isinstance(value.constant, int | float):
        return value.constant < 0
    return value.op == "neg"


def _flows_into(value: Value, targets: set[int]) -> bool:
    def summed(one: Value) -> list[Value]:
        return [user for user in one.users if user.op not in ("exp", "eq", "ge", "gt", "lt", "le")]

    return any(id(part) in targets for part in islice(walk(value, summed), _MOST_VALUES))

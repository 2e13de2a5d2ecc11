"""What a value is by what is made of it, where nothing is known of what it was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.programs.facts.kinds.kind import Kind, Known, around_one, is_number
from assay.programs.graph import Value

if TYPE_CHECKING:
    from assay.programs.facts.kinds.kinds import Kinds


def used_as(value: Value, kinds: Kinds) -> Known | None:
    """A ratio is clamped around 1; a difference of log-probs is what its exp is taken of."""
    inner, other = value.input, value.argument("other")
    if value.op == "exp" and inner is not None and inner.op == "sub" and _is_clipped(value):
        return Known(Kind.RATIO, value, "exp of a difference that is clamped around 1")
    if value.op == "div" and _is_clipped(value) and other is not None and not is_number(other):
        return Known(Kind.RATIO, value, "a quotient that is clamped around 1")
    if value.op == "sub" and any(user.op == "exp" and _is_clipped(user) for user in value.users):
        return Known(Kind.LOG_RATIO, value, "its exp is clamped around 1")
    if value.op == "mul" and any(user.op == "exp" for user in value.users):
        logs = [known for one in value.inputs if (known := kinds.of(one)) is not None and known.kind is Kind.LOG_RATIO]
        if len(logs) == 1:
            return Known(Kind.LOG_RATIO, value, "a difference of log-probs under something, before its exp", logs[0])
    if value.op == "sub" and inner is not None and other is not None and _has_exp(value, inner):
        sides = [(inner, kinds.of(inner)), (other, kinds.of(other))]
        ours = [known for _, known in sides if known is not None and known.kind is Kind.LOGPROBS]
        strangers = [side for side, known in sides if known is None and not is_number(side)]
        if len(ours) == 1 and len(strangers) == 1:
            return Known(
                Kind.LOG_RATIO, value, "log-probs and something else, of whose difference the exp is taken", ours[0]
            )
    return None


def _is_clipped(value: Value) -> bool:
    return any(user.op == "clamp" and user.input is value and around_one(user) for user in value.users)


def _has_exp(difference: Value, inner: Value) -> bool:
    """Whether the exp is taken of it, or of the same difference written a second time."""
    same = [user for user in inner.users if user.op == "sub" and user.arguments == difference.arguments]
    return any(user.op in ("exp", "expm1") for one in (difference, *same) for user in one.users)

"""Advantages in a script: what is centred or scaled by its own statistics and then weighs the policy's gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors, follow, users, walk

_FORM = frozenset(
    "view reshape flatten squeeze unsqueeze expand expand_as repeat repeat_interleave tile index cast clone detach "
    "leave tensor stack cat transpose permute element scaled nan_to_num split chunk".split()
)
_METHODS = frozenset({"unflatten", "ravel"})  # of tensors and arrays, that change the form alone
_NAMES = ("adv", "reward", "return")
LARGEST_EPSILON = 0.1  # an epsilon is below this


@dataclass(frozen=True, eq=False)
class Scaling:
    """numerator / divisor, where the divisor is made of the spread of the same numbers.

    `epsilon`: what keeps the divisor from 0; None if nothing does.
    """

    value: Value
    numerator: Value
    divisor: Value
    spread: Value  # the std or the variance
    base: Value  # the numbers themselves
    is_variance: bool
    epsilon: Value | None


@dataclass(frozen=True, eq=False)
class Centring:
    """numbers - their mean."""

    value: Value
    base: Value
    level: Value  # the mean


def plain(value: Value) -> Value:
    """The numbers behind a change of form, precision or place."""
    return follow(value, _before_its_form)


def _before_its_form(value: Value) -> Value | None:
    if value.op == "phi":
        return value.inputs[0] if len(value.arguments) == 1 else None
    is_form = value.op in _FORM or (value.op == "method" and value.name in _METHODS)
    is_scaled = value.op == "mul" and isinstance(value.setting("other", None), int | float)
    if is_form or is_scaled or (value.op == "attribute" and value.name in ("T", "data")):
        return value.input or value.argument("data") or value.argument("tensors")
    return None


def uncentred(value: Value) -> tuple[Value, Value | None]:
    """The numbers, and the mean that was subtracted from them on the way, if one was."""
    current = plain(value)
    level: Value | None = None
    for _ in range(6):
        other = current.argument("other")
        if current.op == "sub" and current.input is not None and other is not None and is_mean(other) is not None:
            level = other
            current = plain(current.input)
            continue
        if current.op == "add" and current.input is not None and other is not None and is_small(other):
            current = plain(current.input)
            continue
        break
    return current, level


def is_mean(value: Value) -> Value | None:
    """The mean behind a value: mean(x), x.sum() / n, torch.std_mean(x)[1]; None if it is none."""
    current = plain(value)
    if current.op in ("mean", "nanmean", "median"):
        return current
    if current.op == "div" and current.input is not None and plain(current.input).op == "sum":
        return plain(current.input)
    if _part_of_pair(value, 1):
        return pair_of(value)
    return None


def level_of(value: Value) -> list[Value]:
    """The numbers of which the value is a mean, without the mask they may have been multiplied by."""
    mean = is_mean(value)
    inner = None if mean is None else mean.input or mean.argument("0")
    if inner is None:
        return []
    numbers = plain(inner)
    if numbers.op == "mul":
        return [numbers, *(plain(part) for part in numbers.inputs)]
    return [numbers]


def _holds(values: list[Value], value: Value) -> bool:
    return any(part is value for part in values)


def spread_of(divisor: Value) -> tuple[Value, bool, Value | None] | None:
    """The std or variance in a divisor, whether it is a variance, and what keeps it from 0."""
    epsilon: Value | None = None
    rooted = False
    squared = False
    current = divisor
    for _ in range(16):
        other = current.argument("other")
        inner = current.input or current.argument("0")
        if current.op == "std" or _part_of_pair(current, 0, "std_mean"):
            return current, squared and not rooted, epsilon
        if current.op == "var" or _part_of_pair(current, 0, "var_mean") or _is_own_variance(current):
            return current, not rooted, epsilon
        if current.op == "add" and current.input is not None and other is not None:
            first = _leads_to_spread(current.input)
            kept = other if first else current.input
            epsilon = epsilon or (None if kept.constant == 0 else kept)
            current = current.input if first else other
        elif current.op in ("clamp", "maximum", "max", "nan_to_num") and inner is not None:
            epsilon = epsilon or other or current.argument("min") or current.argument("nan") or current
            current = inner if other is None or _leads_to_spread(inner) else other
        elif current.op == "where":
            epsilon = epsilon or current
            sides = [current.arguments[name] for name in ("input", "other") if name in current.arguments]
            current = next((side for side in sides if _leads_to_spread(side)), sides[0])
        elif current.op == "phi":
            leading = [part for part in current.inputs if _leads_to_spread(part)]
            if not leading:
                return None
            if len(leading) < len(current.inputs):
                epsilon = epsilon or current
            current = leading[0]
        elif current.op in ("sqrt", "rsqrt") or (current.op == "pow" and current.setting("exponent") in (0.5, -0.5)):
            rooted, current = True, inner or current
        elif current.op == "pow" and current.setting("exponent") == 2 and inner is not None:
            squared, current = True, inner
        elif current.op == "mul" and inner is not None and other is not None:
            current = inner if _leads_to_spread(inner) else other
        elif inner is not None and plain(current) is not current:
            current = plain(current)
        else:
            return None
    return None


def _leads_to_spread(value: Value, depth: int = 8) -> bool:
    if value.op in ("std", "var") or _part_of_pair(value, 0) or _is_own_variance(value):
        return True
    if depth == 0 or value.op in ("forward", "generate", "sub"):
        return False
    return any(_leads_to_spread(part, depth - 1) for part in value.arguments.values())


def _is_own_variance(value: Value) -> bool:
    """mean((x - mean) ** 2), written out."""
    mean = is_mean(value) if value.op in ("mean", "div") else None
    inner = plain(mean.input) if mean is not None and mean.input is not None else None
    if inner is None:
        return False
    return any(_is_squared_difference(part) for part in ([inner, *inner.inputs] if inner.op == "mul" else [inner]))


def _is_squared_difference(value: Value) -> bool:
    squared = value.op == "square" or (value.op == "pow" and value.setting("exponent") == 2)
    return squared and value.input is not None and plain(value.input).op == "sub"


def _part_of_pair(value: Value, number: int, name: str = "") -> bool:
    pair = pair_of(value)
    if pair is None or value.setting("0") != number:
        return False
    return pair.name.endswith(name or ("std_mean", "var_mean"))


def pair_of(value: Value) -> Value | None:
    """torch.std_mean(x), of which a value is one of the two."""
    inner = value.input if value.op == "index" else None
    return inner if inner is not None and inner.op == "call" and inner.name.endswith(("std_mean", "var_mean")) else None


def spread_base(spread: Value) -> Value | None:
    """The numbers of which the spread was taken."""
    pair = pair_of(spread)
    if pair is not None:
        return plain(pair.arguments["0"]) if "0" in pair.arguments else None
    if _is_own_variance(spread):
        mean = is_mean(spread)
        inner = plain(mean.input) if mean is not None and mean.input is not None else spread
        squares = [part for part in [inner, *inner.inputs] if _is_squared_difference(part)]
        centred = squares[0].input if squares else None
        return uncentred(centred)[0] if centred is not None else None
    return uncentred(spread.input)[0] if spread.input is not None else None


def scalings(program: Program) -> Iterator[Scaling]:
    """Every division by a spread of the very numbers that are divided."""
    for value in program.of("div", "mul"):
        for numerator, divisor in _fractions(value):
            found = spread_of(divisor)
            if found is None:
                continue
            spread, is_variance, epsilon = found
            base = spread_base(spread)
            if base is None or not _is_over(numerator, base):
                continue
            yield Scaling(value, numerator, divisor, spread, base, is_variance, epsilon)


def _is_over(numerator: Value, base: Value) -> bool:
    """Whether the numerator is made of those numbers: as they are, minus something, or their mean."""
    top, _ = uncentred(numerator)
    if top is base or _holds(level_of(numerator), base):
        return True
    return top.op == "sub" and top.input is not None and plain(top.input) is base


def _fractions(value: Value) -> Iterator[tuple[Value, Value]]:
    first, second = value.input, value.argument("other")
    if first is None or second is None:
        return
    if value.op == "div":
        yield first, second
        return
    for numerator, factor in ((first, second), (second, first)):
        inverse = plain(factor)
        if inverse.op == "rsqrt" or (inverse.op == "pow" and inverse.setting("exponent") in (-0.5, -1)):
            yield numerator, inverse


def centrings(program: Program) -> Iterator[Centring]:
    for value in program.of("sub"):
        other = value.argument("other")
        if other is None or value.input is None:
            continue
        base = plain(value.input)
        levels = level_of(other)
        if _holds(levels, base) or any(_is_element(value.input, level) for level in levels):
            yield Centring(value, base, other)


def _is_element(number: Value, listed: Value) -> bool:
    """rewards[i] of the list whose mean was taken."""
    thing = listed.thing
    return isinstance(thing, Listing) and any(number is element for element in thing.elements)


def is_small(value: Value) -> bool:
    return isinstance(value.constant, int | float) and 0 < value.constant < LARGEST_EPSILON


def weighs_policy(program: Program, value: Value) -> bool:
    """Whether the value becomes a factor of a policy term of a loss."""
    return id(value) in program.policy_factor_ids


def is_advantage(program: Program, value: Value) -> bool:
    """It weighs the policy's gradient; or, where no loss is in sight, it is called so and no network made it."""
    if weighs_policy(program, value):
        return True
    if any(terms for _, terms in program.losses if any(term.is_policy for term in terms)):
        return False
    if program.kinds.of(plain(value)) is not None or program.origins.forwards(value):
        return False
    called = [*value.names, *value.context.functions[-1:], *(name for user in value.users for name in user.names)]
    return any(word in name.lower() for name in called for word in _NAMES)


def is_guarded(program: Program, scaling: Scaling) -> bool:
    """Whether a division happens only where the spread is not 0, or what came of 0 is taken away afterwards."""
    for branch in scaling.value.context.branches:
        made_of = list(islice(ancestors(branch.condition), 60))
        if any(value is scaling.spread or value is scaling.base or value.op == "len" for value in made_of):
            return True
    if _is_tested_before(program, scaling):
        return True
    kept = _FORM | {"mul", "phi", "in_place"}
    for user in islice(walk(scaling.value.users, users, until=lambda value: value.op not in kept), 30):
        if user.op in ("nan_to_num", "isnan", "isfinite"):
            return True
        if user.op in ("where", "masked_fill", "setitem"):
            condition = user.argument("condition") or user.argument("mask") or user.argument("0")
            if condition is not None and any(value is scaling.spread for value in islice(ancestors(condition), 60)):
                return True
    return False


def _is_tested_before(program: Program, scaling: Scaling) -> bool:
    """`if std == 0: continue`: a test of the spread, or of the range of the numbers, that only decides what is run."""
    for test in program.of(*_TESTS):
        if test.order > scaling.value.order or any(user.op not in ("and", "phi", "not") for user in test.users):
            continue
        if test.op == "call" and not test.name.endswith(("isclose", "allclose")):
            continue
        near = list(islice(ancestors(test), 30))
        if any(value is scaling.spread for value in near):
            return True
        ranged = any(value.op in ("max", "min", "amax", "amin", "unique") or value.name == "set" for value in near)
        if ranged and any(value is scaling.base for value in near):
            return True
    return False


_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "not", "assert", "all", "any", "call")


def policy_weights(program: Program) -> Iterator[Value]:
    """The factors of policy terms that are neither masks nor numbers, without the change of their form."""
    seen: set[int] = set()
    policy = [term for _, terms in program.losses for term in terms if term.is_policy]
    for factor in [factor for term in policy for factor in program.terms.factors(term)]:
        value = follow(
            plain(factor),
            lambda current: plain(current.input) if current.op == "neg" and current.input is not None else None,
        )
        known = program.kinds.of(value)
        if id(value) not in seen and known is None and not isinstance(value.constant, int | float):
            seen.add(id(value))
            yield value


def is_centred_before(value: Value) -> bool:
    """Whether something was subtracted on the way to a value: a baseline, a value, a mean of the others.

    How a reward was made inside of its function is its own business.
    """
    made_of = walk(value, until=lambda current: current.op in ("tensor", "listing"))  # rewards, one per row
    return any(part.op in ("sub", "rsub") for part in islice(made_of, 200))

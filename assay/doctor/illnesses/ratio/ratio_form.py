"""
## What it checks
What stands where the ratio of probabilities belongs: in `clamp(x, 1 - eps, 1 + eps)` and on both sides of the minimum
of the clipped objective. It must be exp(new - old), with one exp. The check knows the log-probs by what was done to
them, and looks for a difference of log-probs without exp, an exp too many, a quotient of log-probs, a difference of
probabilities, and for an exp on one side only.

## Why it hurts
A log-ratio is 0 where the policy has not moved, a ratio 1. Clamped to [0.8, 1.2] a log-ratio is always 0.8: the clipped
side is a constant without a gradient, and the minimum picks it for every good token. An exp too many starts at 2.7
instead of 1, outside of the clip range. A quotient of log-probs shrinks when the token gets likelier: its gradient
points the wrong way.

## How to fix it
    # before
    ratio = new_logprobs - old_logprobs
    # after
    ratio = torch.exp(new_logprobs - old_logprobs)

## When it is wrong
A log-ratio that is clamped around 0 (to keep exp from overflowing, or as a clip in log space) is right and left alone,
and so is a difference of log-probs times the advantage with one update for each rollout: its gradient is that of the
ratio.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import islice

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.loss.signs import is_centred_factor
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.optimizer.epochs import epochs_over, parts_of_rollout
from assay.programs.facts.ratio import clamped_around_one, differences, surrogates, without_views
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.ratio import FORMS, factors
from assay.programs.run.sight import numbers_of
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import follow, users, walk
from assay.verdict import Edit, Severity, Verdict, finding, healthy, not_applicable

_LOGS = (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS)
RIGHT = ("new / old", "log-probs")  # of the forms that a run shows
TURNED = "old / new"  # another illness
LOGARITHM = "new - old, the logarithm of the ratio"


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    for check in (_clamps, _sides, _exp_of_ratio, _without_clip):
        yield from check(program)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for factor in factors(run):
        wrong = [form for form in FORMS if form in factor.forms and form not in (*RIGHT, TURNED)]
        if not factor.forms.isdisjoint(RIGHT):
            yield healthy("what the advantages weigh is exp(new - old)")
        elif LOGARITHM in factor.forms and _is_at_zero(factor.value):
            yield not_applicable("new equals old in every update: new - old has the gradient of the ratio there")
        elif wrong:
            yield finding(
                f"what the advantages are multiplied by, {factor.value.shown}, is {wrong[0]}, and not exp(new - old)",
                places=(factor.value.place,),
            )


def _is_at_zero(factor: Value) -> bool:
    """Whether a difference of log-probs is 0 at every token, and no clamp makes anything else of it."""
    ways = islice(walk(factor.users, users, until=lambda value: value.op in ("backward", "sum", "mean", "mul")), 60)
    seen = [numbers_of(value) for value in (factor, *(value for value in ways if value.op == "clamp"))]
    return all(numbers is not None and not numbers.any() for numbers in seen)


def _clamps(program: Program) -> Iterator[Verdict]:
    for clamp in program.of("clamp"):
        inner = clamp.input
        if inner is None:
            continue
        if not clamped_around_one(clamp):
            if _is_around_zero(clamp) and program.kinds.is_a(inner, Kind.RATIO):
                yield finding(
                    f"{inner.shown} is a ratio of probabilities, 1 where nothing changed, but it is clamped around 0: "
                    f"{clamp.place.text}",
                    places=(clamp.place, inner.place),
                    why=program.kinds.why(inner),
                    fix="Clamp the ratio to [1 - eps, 1 + eps].",
                )
            continue
        wrong, at = _not_a_ratio(program, inner)
        if wrong:
            yield _finding(program, inner, at, f"is clamped around 1 like a ratio, but it is {wrong}", clamp)
        elif program.kinds.is_a(inner, Kind.RATIO):
            yield healthy("what is clamped around 1 is a ratio of probabilities", places=(clamp.place,))


def _not_a_ratio(program: Program, value: Value) -> tuple[str, Value]:
    """What stands in the place of a ratio, and where it is made; "" if it is one or is not known."""
    kinds = program.kinds
    current = _without_mask(program, value)
    inner, other = current.input, current.argument("other")
    if current.op == "phi":
        logs = [part for part in current.inputs if kinds.is_a(part, Kind.LOG_RATIO)]
        if logs and any(kinds.is_a(part, Kind.RATIO) for part in current.inputs):
            return "on one branch a difference of log-probs, without exp", logs[0]
        return "", current
    if current.op == "expm1" and kinds.is_a(inner, Kind.LOG_RATIO):
        return "expm1 of a difference of log-probs: the ratio minus 1", current
    if current.op == "div" and kinds.is_a(inner, *_LOGS) and kinds.is_a(other, *_LOGS):
        return "a quotient of log-probs", current
    if current.op == "sub" and all(kinds.is_a(side, Kind.TOKEN_PROBABILITIES) for side in (inner, other)):
        return "a difference of probabilities", current
    mixed = current.input if current.op == "exp" and current.input is not None else current
    if mixed.op in ("sub", "div"):
        pair = {_kind(program, side) for side in (mixed.input, mixed.argument("other"))}
        if pair == {Kind.LOGPROBS, Kind.TOKEN_PROBABILITIES}:
            return "made of a log-prob and a probability", mixed
    if kinds.is_a(current, Kind.LOG_RATIO):
        return "a difference of log-probs: the exp is missing", current
    if kinds.is_a(current, Kind.EXP_RATIO):
        return "the exp of a ratio: one exp too many", current
    # exp(a - b), where one of them is not known, is not judged
    is_difference = any(value.op in ("sub", "div") for value in (current, inner) if value is not None)
    if kinds.is_a(current, Kind.TOKEN_PROBABILITIES) and program.origins.gradient(current) and not is_difference:
        return "a probability: nothing is divided by the old one", current
    return "", current


def _kind(program: Program, value: Value | None) -> Kind | None:
    known = program.kinds.of(value)
    return known.kind if known is not None else None


def _without_mask(program: Program, value: Value) -> Value:
    def unmasked(product: Value) -> Value | None:
        sides = (product.input, product.argument("other")) if product.op == "mul" else ()
        for side, rest in zip(sides, reversed(sides), strict=True):
            if program.kinds.is_a(side, Kind.MASK) and rest is not None:
                return without_views(rest)
        return None

    return follow(without_views(value), unmasked)


def _is_around_zero(clamp: Value) -> bool:
    """clamp(x, -eps, eps) with an eps below 1."""
    low, high = clamp.setting("min"), clamp.setting("max")
    return isinstance(low, int | float) and isinstance(high, int | float) and -1.0 < low < 0.0 < high < 1.0


def _finding(program: Program, value: Value, at: Value, what: str, clamp: Value | None = None) -> Verdict:
    places = (at.place, clamp.place) if clamp is not None and clamp.place != at.place else (at.place,)
    return finding(f"{value.shown} {what}", places=places, why=program.kinds.why(at))


def _sides(program: Program) -> Iterator[Verdict]:
    """An exp on one side of the minimum only; a quotient of log-probs there."""
    for _, products in surrogates(program):
        ratios = [product.ratio for product in products]
        for ratio, facing in zip(ratios, reversed(ratios), strict=True):
            is_log = program.kinds.is_a(ratio, Kind.LOG_RATIO)
            if is_log and program.kinds.is_a(facing, Kind.RATIO, Kind.CLIPPED_RATIO):
                what = "is on one side of the minimum without exp, and with exp on the other"
                yield _finding(program, ratio, ratio, what)


def _exp_of_ratio(program: Program) -> Iterator[Verdict]:
    for value in program.of("exp"):
        if value.input is None or not program.kinds.is_a(value, Kind.EXP_RATIO):
            continue
        yield finding(
            f"`{value.place.text}` is the exp of {value.input.shown}, a ratio already: it starts at 2.7, not at 1",
            places=(value.place, value.input.place),
            why=program.kinds.why(value),
            fix="Leave one exp away.",
        )


def _without_clip(program: Program) -> Iterator[Verdict]:
    """(new - old) * advantage, without exp and clip, over several updates on the same rollouts."""
    for _, terms in program.losses:
        for term in terms:
            if term.kind is not TermKind.KL or term.estimator != "k1":
                continue
            if not any(is_centred_factor(program, factor) for factor in term.factors):
                continue
            for difference in differences(program, term.core):
                value, left, right = difference.value, difference.left, difference.right
                ends = program.origins.gradient(left), program.origins.gradient(right)
                if ends != (True, False) or program.origins.is_reference(right) is not False:
                    continue
                calls = program.origins.forwards(left)
                if any(epochs_over(program, call) or parts_of_rollout(program, call) for call in calls):
                    what = (
                        "weighs the advantage over several updates on the same rollouts, but it is a difference of "
                        "log-probs, not a ratio: the exp is missing"
                    )
                    yield _finding(program, value, value, what)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """exp(new - old): an exp that is missing is added, one too many taken away, a quotient becomes a difference."""
    node = spot.node
    if isinstance(node, ast.Call) and spot.receiver is not None:
        statement = spot.statement
        if (
            isinstance(statement.node, ast.Assign)
            and statement.child(statement.node.targets[0]).source == spot.receiver.source
        ):
            yield spot.without_line()
        yield spot.renamed("exp") if spot.name == "expm1" else None
        if spot.name == "exp":
            yield spot.without_call() if spot.is_method else spot.as_part(spot.receiver.source)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub | ast.Div):
        return
    sides = []
    for part in (spot.child(node.left), spot.child(node.right)):
        sides.append(part.receiver if part.name == "exp" and part.receiver is not None else part)
    difference = f"{sides[0].within(1)} - {sides[1].within(2)}"
    torch = spot.text.torch
    targets = spot.statement.node.targets if isinstance(spot.statement.node, ast.Assign) else []
    for alias in Spot(spot.text, spot.function).all(ast.Assign):  # ratio = log_ratio
        value = alias.node.value
        if (
            isinstance(value, ast.Name)
            and [ast.unparse(target) for target in targets] == [value.id]
            and isinstance(node.op, ast.Sub)
        ):
            yield alias.child(value).becomes(f"{torch}.exp({value.id})" if torch else f"{value.id}.exp()")
    yield spot.as_part(f"{torch}.exp({difference})" if torch else f"({difference}).exp()")


ILLNESS = illness(
    __name__,
    code="RAT08",
    severity=Severity.FATAL,
    summary="the value used as the ratio is not a ratio: an exp is missing, or there is one too many",
    fix="Use ratio = exp(new - old): the difference of log-probs, and one exp.",
    symptoms=(
        "ratio is negative",
        "ratio is near 0",
        "log-ratio used as a ratio",
        "exp is missing",
    ),
    scripts=Scripts(sick=with_change("ratio = torch.exp(new - old)", "ratio = new - old"), well=GRPO),
    explains=frozenset({"RAT01", "RAT07", "CLIP01", "CLIP02", "RAT04", "LOSS01", "LOSS06"}),
)

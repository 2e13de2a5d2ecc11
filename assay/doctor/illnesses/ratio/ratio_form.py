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

from collections.abc import Iterator

from assay.doctor.catalogue import Illness, Scripts
from assay.doctor.examples.scripts import GRPO, changed
from assay.programs.facts.kinds import Kind
from assay.programs.facts.loss.signs import is_centred_factor
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.optimizer.epochs import epochs_over
from assay.programs.facts.ratio import clamped_around_one, differences, surrogates, without_views
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.ratio import FORMS, factors
from assay.programs.run.watched import WatchedRun
from assay.verdict import Confidence, Edit, Place, Severity, Verdict, finding, healthy

_LOGS = (Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS)
RIGHT = ("new / old", "log-probs")  # of the forms that a run shows
TURNED = "old / new"  # another illness


def check_source(program: Program) -> Iterator[Verdict]:
    told: set[Place] = set()
    for verdict in (*_clamped(program), *_sides(program), *_twice(program), *_unclipped(program)):
        if verdict.places[0] not in told:
            told.add(verdict.places[0])
            yield verdict


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for factor in factors(run):
        wrong = [form for form in FORMS if form in factor.forms and form not in (*RIGHT, TURNED)]
        if not factor.forms.isdisjoint(RIGHT):
            yield healthy("what the advantages weigh is exp(new - old)")
        elif wrong:
            yield finding(
                f"what the advantages are multiplied by, {factor.value.shown}, is {wrong[0]}, and not exp(new - old)",
                places=(factor.value.place,),
            )


def _clamped(program: Program) -> Iterator[Verdict]:
    for clamp in program.of("clamp"):
        inner = clamp.input
        if inner is None:
            continue
        if not clamped_around_one(clamp):
            if _is_around_zero(clamp) and program.kinds.is_a(inner, Kind.RATIO):
                yield finding(
                    f"{inner.shown} is a ratio of probabilities, 1 where nothing changed, but it is clamped around 0: "
                    f"{clamp.place.text}",
                    confidence=Confidence.LIKELY,
                    places=(clamp.place, inner.place),
                    why=program.kinds.why(inner),
                    fix="Clamp the ratio to [1 - eps, 1 + eps].",
                )
            continue
        wrong, at = _not_a_ratio(program, inner)
        if wrong:
            yield _said(program, inner, at, f"is clamped around 1 like a ratio, but it is {wrong}", clamp)
        elif program.kinds.is_a(inner, Kind.RATIO):
            yield healthy("what is clamped around 1 is a ratio of probabilities", places=(clamp.place,))


def _not_a_ratio(program: Program, value: Value) -> tuple[str, Value]:
    """What stands in the place of a ratio, and where it is made; "" if it is one or is not known."""
    kinds = program.kinds
    current = _without_mask(program, value)
    inner, other = current.input, current.argument("other")
    if current.op == "phi":
        parts = [kinds.of(one) for one in current.inputs]
        found = {one.kind for one in parts if one is not None}
        if Kind.LOG_RATIO in found and Kind.RATIO in found:
            missing = next(
                one for one, known in zip(current.inputs, parts, strict=True) if known and known.kind is Kind.LOG_RATIO
            )
            return "on one branch a difference of log-probs, without exp", missing
        return "", current
    if current.op == "expm1" and kinds.is_a(inner, Kind.LOG_RATIO):
        return "expm1 of a difference of log-probs: the ratio minus 1", current
    if current.op == "div" and kinds.is_a(inner, *_LOGS) and kinds.is_a(other, *_LOGS):
        return "a quotient of log-probs", current
    if (
        current.op == "sub"
        and kinds.is_a(inner, Kind.TOKEN_PROBABILITIES)
        and kinds.is_a(other, Kind.TOKEN_PROBABILITIES)
    ):
        return "a difference of probabilities", current
    mixed = current.input if current.op == "exp" and current.input is not None else current
    if mixed.op in ("sub", "div") and mixed.input is not None:
        pair = [
            known.kind if (known := kinds.of(one)) is not None else None
            for one in (mixed.input, mixed.argument("other"))
        ]
        if set(pair) == {Kind.LOGPROBS, Kind.TOKEN_PROBABILITIES}:
            return "made of a log-prob and a probability", mixed
    known = kinds.of(current)
    if known is None:
        return "", current
    if known.kind is Kind.LOG_RATIO:
        return "a difference of log-probs: the exp is missing", current
    if known.kind is Kind.EXP_RATIO:
        return "the exp of a ratio: one exp too many", current
    if (
        known.kind is Kind.TOKEN_PROBABILITIES
        and program.origins.gradient(current) is True
        and not _is_difference(current)
    ):
        return "a probability: nothing is divided by the old one", current
    return "", current


def _is_difference(value: Value) -> bool:
    """exp(a - b), where one of them is not known."""
    return any(one.op in ("sub", "div") for one in (value, value.input) if one is not None)


def _without_mask(program: Program, value: Value) -> Value:
    current = without_views(value)
    while current.op == "mul":
        for one, rest in ((current.input, current.argument("other")), (current.argument("other"), current.input)):
            if program.kinds.is_a(one, Kind.MASK) and rest is not None:
                current = without_views(rest)
                break
        else:
            break
    return current


def _is_around_zero(clamp: Value) -> bool:
    """clamp(x, -eps, eps) with an eps below 1."""
    low, high = clamp.argument("min"), clamp.argument("max")
    if low is None or high is None:
        return False
    if isinstance(low.constant, int | float) and isinstance(high.constant, int | float):
        return -1.0 < low.constant < 0.0 < high.constant < 1.0
    return False


def _said(program: Program, value: Value, at: Value, what: str, clamp: Value | None = None) -> Verdict:
    edit = None
    if at.op == "sub" and program.kinds.is_a(at, Kind.LOG_RATIO):
        edit = Edit(at.place, f"torch.exp({at.place.text})") if not at.place.text.endswith("..") else None
    places = (at.place, clamp.place) if clamp is not None and clamp.place != at.place else (at.place,)
    return finding(
        f"{value.shown} {what}", confidence=Confidence.LIKELY, places=places, why=program.kinds.why(at), edit=edit
    )


def _sides(program: Program) -> Iterator[Verdict]:
    """An exp on one side of the minimum only; a quotient of log-probs there."""
    for _, products in surrogates(program):
        ratios = [one.ratio for one in products]
        kinds = [known.kind if (known := program.kinds.of(one)) is not None else None for one in ratios]
        for number, one in enumerate(ratios):
            facing = kinds[1 - number]
            if kinds[number] is Kind.LOG_RATIO and facing in (Kind.RATIO, Kind.CLIPPED_RATIO):
                yield _said(program, one, one, "is on one side of the minimum without exp, and with exp on the other")


def _twice(program: Program) -> Iterator[Verdict]:
    for value in program.of("exp"):
        if value.input is None or not program.kinds.is_a(value, Kind.EXP_RATIO):
            continue
        yield finding(
            f"`{value.place.text}` is the exp of {value.input.shown}, a ratio already: it starts at 2.7, not at 1",
            confidence=Confidence.LIKELY,
            places=(value.place, value.input.place),
            why=program.kinds.why(value),
            fix="Leave one exp away.",
        )


def _unclipped(program: Program) -> Iterator[Verdict]:
    """(new - old) * advantage, without exp and clip, over several updates on the same rollouts."""
    for _, terms in program.losses:
        for term in terms:
            if term.kind is not TermKind.KL or term.estimator != "k1":
                continue
            if not any(is_centred_factor(program, factor) for factor in term.factors):
                continue
            for one in differences(program, term.core):
                calls = program.origins.forwards(one.left)
                ends = program.origins.gradient(one.left), program.origins.gradient(one.right)
                if ends != (True, False) or program.origins.is_reference(one.right) is not False:
                    continue
                if any(epochs_over(program, call) is not None for call in calls):
                    yield _said(
                        program,
                        one.value,
                        one.value,
                        "weighs the advantage over several updates on the same rollouts, but it is a difference of "
                        "log-probs, not a ratio: the exp is missing",
                    )


ILLNESS = Illness(
    code="RAT08",
    name="ratio_form",
    severity=Severity.FATAL,
    summary="the value used as the ratio is not a ratio: an exp is missing, or there is one too many",
    fix="Use ratio = exp(new - old): the difference of log-probs, and one exp.",
    explanation=__doc__,
    symptoms=(
        "ratio is negative",
        "ratio is near 0",
        "log-ratio used as a ratio",
        "exp is missing",
    ),
    run=check_run,
    source=check_source,
    scripts=Scripts(sick=changed("ratio = torch.exp(new - old)", "ratio = new - old"), well=GRPO),
    explains=frozenset({"RAT01", "RAT07", "CLIP01", "CLIP02", "RAT04", "LOSS01", "LOSS06"}),
)

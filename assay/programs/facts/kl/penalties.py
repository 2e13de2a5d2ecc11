"""The KL terms of a loss: which estimator, which way round, against which network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.kinds import PASSES, Kind
from assay.programs.facts.loss.signs import is_centred_factor
from assay.programs.facts.loss.terms import Term, TermKind
from assay.programs.facts.ratio import Difference, before_detach, differences, is_differentiated, uses
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import peel, walk
from assay.verdict import Place

_ALGEBRA = (PASSES | frozenset("mul div mean sum nanmean neg add sub index where clamp pow exp".split())) - {
    "phi",
    "table",
    "listing",
    "element",
}
_DEEPEST = 60
_CREDIT = re.compile(r"(reward|advantage|return)s?$")


@dataclass(frozen=True, eq=False)
class Summand:
    """A summand of an estimate: sign * exp(left - right), or sign * (left - right)."""

    sign: int
    value: Value
    difference: Difference


@dataclass(frozen=True, eq=False)
class Penalty:
    """A KL term. `part` is the exponential of a k3, `linear` its other part or the whole of a k1."""

    loss: Value
    term: Term
    core: Value
    estimator: str
    part: Summand | None
    linear: Summand | None
    has_gradient: bool | None

    @property
    def difference(self) -> Difference | None:
        known = self.part or self.linear
        return known.difference if known is not None else None


def penalties(program: Program) -> list[Penalty]:
    """Each KL term of each loss, those behind a detach too."""
    found: list[Penalty] = []
    for loss, terms in program.losses:
        for term in terms:
            if term.kind is TermKind.KL:
                found.append(_penalty(program, loss, term, term.core, term.estimator))
            elif term.kind is TermKind.DETACHED:
                core = _inside(program, term.core)
                if core is not None:
                    estimator = program.terms.kl_estimator(core) or "k1"
                    found.append(_penalty(program, loss, term, core, estimator))
    return found


def _penalty(program: Program, loss: Value, term: Term, core: Value, estimator: str) -> Penalty:
    parts = parts_of(program, core) if estimator in ("k3", "k1", "") else []
    exponentials = [part for part in parts if is_exponential(program, part.value)]
    linear = [part for part in parts if not is_exponential(program, part.value)]
    if estimator in ("k2", "abs") and core.input is not None:
        linear = [Summand(1, core.input, difference) for difference in differences(program, core.input)[:1]]
    first = exponentials[0] if exponentials else None
    return Penalty(
        loss, term, core, estimator, first, linear[0] if linear else None, program.origins.gradient(term.core)
    )


def parts_of(program: Program, core: Value) -> list[Summand]:
    found: list[Summand] = []
    for sign, value in program.terms.additive(core):
        known = differences(program, value)
        if len(known) == 1:
            found.append(Summand(sign, value, known[0]))
    return found


def is_exponential(program: Program, value: Value) -> bool:
    return value.op == "expm1" or program.kinds.is_a(value, Kind.RATIO, Kind.CLIPPED_RATIO)


def _inside(program: Program, value: Value) -> Value | None:
    """The KL estimate in something without a gradient, where arithmetic alone lies between."""

    def operands(one: Value) -> list[Value]:
        if one.op not in _ALGEBRA and not (one.op == "attribute" and one.name == "data"):
            return []
        return [part for name, part in one.arguments.items() if name in ("input", "other")]

    for item in islice(walk(value, operands), _DEEPEST):
        is_difference = program.kinds.is_a(item, Kind.LOG_RATIO) and item.op in ("sub", "neg", "mul")
        if program.terms.kl_estimator(item) or is_difference:
            return item
    return None


def policy_and_reference(program: Program, difference: Difference) -> tuple[Value, Value] | None:
    """(policy, reference) of a difference; None where it is not seen that one side is a reference."""
    for ours, theirs in ((difference.left, difference.right), (difference.right, difference.left)):
        if program.origins.is_reference(theirs) is True and program.origins.is_reference(ours) is not True:
            backwards = program.origins.gradient(theirs) and program.origins.gradient(ours) is False
            return None if backwards else (ours, theirs)  # the optimizer holds the wrong network: another illness
    return None


def is_against_old(program: Program, difference: Difference) -> bool:
    """Whether a side of it is the denominator of the policy's own ratio: a KL to the policy that sampled."""
    ends = {id(before_detach(difference.left)), id(before_detach(difference.right))}
    for use in uses(program):
        for value in differences(program, use.ratio):
            right = before_detach(value.right)
            is_old = program.origins.gradient(value.right) is False and right is not before_detach(value.left)
            if id(right) in ends and is_old:
                return True
    return False


def is_a_penalty(program: Program, penalty: Penalty) -> bool:
    """Whether it is a distance to a reference: not a policy gradient with a baseline, not a KL to the sampler."""
    if penalty.estimator == "full":
        return not any(_is_credit(factor) for factor in penalty.term.factors)
    if penalty.difference is None:
        return False
    if policy_and_reference(program, penalty.difference) is not None:
        return not any(is_centred_factor(program, factor) for factor in penalty.term.factors)
    if penalty.estimator in ("k1", "abs", "k2"):
        return False
    ends = {program.origins.gradient(penalty.difference.left), program.origins.gradient(penalty.difference.right)}
    return ends == {True, False} and not is_against_old(program, penalty.difference)


def _is_credit(factor: Value) -> bool:
    """Whether rewards weigh the term: good answers are drawn to a target and bad ones away from it."""
    plain = peel(factor, ("neg", "index", "cast", "moved", "unsqueeze", "detach", "view"))
    return plain.op in ("parameter", "attribute") and _CREDIT.search(plain.name) is not None


def penalty_sign(program: Program, penalty: Penalty) -> int:
    """The sign of the KL in the loss; 0 where the estimate itself is not understood."""
    sign = penalty.term.sign
    if penalty.estimator in ("k2", "abs", "full"):
        return sign
    if penalty.estimator == "k3" and penalty.part is not None:
        return sign if penalty.part.sign > 0 else 0
    if penalty.estimator == "k1" and penalty.linear is not None:
        sides = policy_and_reference(program, penalty.linear.difference)
        if sides is None:
            return 0
        return sign * (1 if sides[0] is penalty.linear.difference.left else -1)
    return 0


def is_also_exponentiated(program: Program, difference: Difference) -> bool:
    """Whether the loss has an exp or a square of the same log-probs too."""
    ends = {id(before_detach(difference.left)), id(before_detach(difference.right))}
    for value in program.of("exp", "expm1", "pow", "square"):
        for part in differences(program, value):
            if {id(before_detach(part.left)), id(before_detach(part.right))} == ends and is_differentiated(
                program, value
            ):
                return True
    return False


# What is wrong with an estimate of the KL: its signs, its direction, its arguments


_LOGS = (Kind.LOG_SOFTMAX, Kind.LOGPROBS)
_PROBABILITIES = (Kind.PROBABILITIES, Kind.TOKEN_PROBABILITIES)


def wrong_estimate(program: Program, penalty: Penalty) -> str:
    """What is wrong with exp(ref - new) - (ref - new) - 1; nothing if it is right or not understood."""
    part, linear = penalty.part, penalty.linear
    if part is None or linear is None:
        return ""
    sides = [(before_detach(side.difference.left), before_detach(side.difference.right)) for side in (part, linear)]
    if sides[0] == sides[1]:
        relative = linear.sign
    elif sides[0] == sides[1][::-1]:
        relative = -linear.sign
    else:
        return ""
    if part.sign * relative > 0:
        return "is not k3: exp(d) and d must be of one d, and d is subtracted"
    if part.sign < 0 and penalty.term.sign > 0:
        return "is k3 with its sign turned: it is never positive, and a penalty must not be negative"
    known = policy_and_reference(program, part.difference)
    if known is not None and known[0] is part.difference.left and program.origins.gradient(known[0]) is not False:
        return "has the exponent new - ref: with samples of new it must be ref - new"
    return ""


def wrong_kl_div(program: Program) -> Iterator[tuple[Place, str]]:
    """F.kl_div with probabilities where log-probs belong, and an exp(ref - new) that is all there is of the KL."""
    for value in program.of("kl_div"):
        given, target = program.kinds.of(value.input), program.kinds.of(value.argument("target"))
        is_log = value.setting("log_target", False)
        if given is not None and given.kind in _PROBABILITIES:
            yield value.place, "gets probabilities as its input: F.kl_div wants log-probs there"
        elif target is not None and target.kind in _LOGS and is_log is False:
            yield value.place, "gets log-probs as its target without log_target=True"
        elif target is not None and target.kind in _PROBABILITIES and is_log is True:
            yield value.place, "gets probabilities as its target with log_target=True"
    for _, terms in program.losses:
        for term in terms:
            if term.kind is not TermKind.POLICY or not program.kinds.is_a(term.core, Kind.RATIO):
                continue
            if any(is_centred_factor(program, factor) for factor in term.factors):
                continue
            known = [policy_and_reference(program, difference) for difference in differences(program, term.core)]
            if known and all(part is not None for part in known):
                yield term.core.place, "is all there is of the KL: k3 is exp(d) - d - 1"

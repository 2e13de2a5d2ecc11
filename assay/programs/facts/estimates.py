"""What is wrong with an estimate of the KL: its signs, its direction, its arguments."""

from __future__ import annotations

from collections.abc import Iterator

from assay.programs.facts.kinds.kind import Kind
from assay.programs.facts.kl.penalties import Penalty, faces
from assay.programs.facts.loss.signs import is_advantage
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.ratio import attached, differences
from assay.programs.read.script import Program
from assay.verdict import Place

_LOGS = (Kind.LOG_SOFTMAX, Kind.LOGPROBS)
_PROBABILITIES = (Kind.PROBABILITIES, Kind.TOKEN_PROBABILITIES)


def wrong_estimate(program: Program, penalty: Penalty) -> str:
    """What is wrong with exp(ref - new) - (ref - new) - 1; nothing if it is right or not understood."""
    part, linear = penalty.part, penalty.linear
    if part is None or linear is None:
        return ""
    sides = [(attached(one.difference.left), attached(one.difference.right)) for one in (part, linear)]
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
    known = faces(program, part.difference)
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
            if any(is_advantage(program, factor) for factor in term.factors):
                continue
            known = [faces(program, one) for one in differences(program, term.core)]
            if known and all(one is not None for one in known):
                yield term.core.place, "is all there is of the KL: k3 is exp(d) - d - 1"

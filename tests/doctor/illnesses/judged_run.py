"""What an illness says of a watched run, as one line of a test."""

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.verdict import Confidence, State


def said(code, run):
    """(state, confidence, lines, message) of an illness on a run."""
    (word,) = diagnose(Evidence(run=run), [by_code(code)]).words
    verdict = word.verdict
    return verdict.state, verdict.confidence, [one.line for one in verdict.places], verdict.message


def finds(code, run, *lines, words="", sure=Confidence.PROVEN):
    state, confidence, at, message = said(code, run)
    assert (state, confidence) == (State.FINDING, sure), message
    assert words in message
    assert at == list(lines)


def passes(code, run):
    state, _, _, message = said(code, run)
    assert state is State.HEALTHY, message


def leaves_alone(code, run):
    assert said(code, run)[0] is State.NOT_APPLICABLE

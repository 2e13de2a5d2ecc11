"""What the doctor makes of the words of checks: crashes, missing data, several batches, causes and consequences."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from fixtures.made_run import MadeRun

from assay.doctor.catalogue import Illness, catalogue
from assay.doctor.diagnosis import Diagnosis, Word, diagnose, root_causes
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import healthy_curves, of_curves
from assay.programs.read.script import read_program
from assay.verdict import (
    Confidence,
    Missing,
    Place,
    Severity,
    State,
    finding,
    healthy,
    likely,
    not_applicable,
    suspected,
)

PROVEN, LIKELY, POSSIBLE = Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE


def illness(code="RAT01", *, batch=None, curves=None, explains=(), severity=Severity.HARMFUL, **checks):
    nobody = Evidence
    return Illness(
        code,
        code.lower(),
        severity,
        "s",
        "f",
        "e",
        nobody,
        nobody,
        batch,
        curves,
        explains=frozenset(explains),
        **checks,
    )


def by_step(words):
    """A check that says of each batch what stands at its step; an exception is raised."""

    def check(batch):
        word = words[batch.step]
        if isinstance(word, Exception):
            raise word
        return word

    return check


def word_on(words, curves=None):
    """What counts of a batch a step, given in order."""
    batches = tuple(Batch.of({"step": step}, source=f"step {step}") for step in sorted(words))
    asked = illness(batch=by_step(words), curves=None if curves is None else lambda _: curves)
    (one,) = diagnose(Evidence(batches, Curves([]) if curves else None), [asked]).words
    return one


@pytest.mark.parametrize("error", [ZeroDivisionError("by 0"), KeyError("x"), IndexError("9"), RuntimeError("odd")])
def test_a_check_that_breaks_is_a_crash_and_never_a_pass(error):
    word = word_on({1: error})
    assert word.verdict.state is State.CRASHED
    assert word.verdict.message == f"{type(error).__name__}: {error}"


def test_a_check_that_lacks_its_data_names_it():
    word = word_on({1: Missing("old_logprobs", "mask")})
    assert (word.verdict.state, word.verdict.message) == (State.NOT_ENOUGH_DATA, "old_logprobs, mask")
    nothing = diagnose(Evidence(), [illness(batch=by_step({}), curves=lambda _: healthy("fine"))]).words[0]
    assert nothing.verdict.state is State.NOT_ENOUGH_DATA
    assert set(nothing.verdict.message.split(" or ")) == {"a recorded batch", "curves"}


def test_of_several_words_the_loudest_counts():
    found, fine, other = finding("bad"), healthy("fine"), not_applicable("no KL")
    crash, lost = ZeroDivisionError("by 0"), Missing("mask")
    assert word_on({1: found, 2: crash, 3: fine}).verdict.state is State.FINDING
    assert word_on({1: crash, 2: fine, 3: other, 4: lost}).verdict.state is State.CRASHED
    assert word_on({1: fine, 2: other, 3: lost}).verdict.state is State.HEALTHY
    assert word_on({1: other, 2: lost}).verdict.state is State.NOT_APPLICABLE


def test_of_several_findings_the_surest_and_then_the_gravest_counts_and_all_are_counted():
    words = {1: finding("sure"), 2: finding("less", confidence=LIKELY), 3: finding("least", confidence=POSSIBLE)}
    word = word_on(words)
    assert (word.verdict.message, word.source, word.batches) == ("sure", "step 1", 3)
    grave = word_on({1: finding("grave", severity=Severity.FATAL), 2: finding("light"), 3: healthy("fine")})
    assert (grave.verdict.message, grave.severity, grave.batches) == ("grave", Severity.FATAL, 2)


def test_of_equals_the_whole_run_counts_before_a_batch_and_a_late_batch_before_an_early_one():
    word = word_on({1: finding("early"), 2: finding("late")})
    assert (word.verdict.message, word.source) == ("late", "step 2")
    as_sure = finding("batch", confidence=POSSIBLE)
    assert word_on({1: as_sure}, curves=finding("run", confidence=POSSIBLE)).verdict.message == "run"
    assert word_on({1: finding("batch")}, curves=finding("run", confidence=POSSIBLE)).verdict.message == "batch"
    assert word_on({1: healthy("fine")}, curves=finding("run", confidence=POSSIBLE)).verdict.message == "run"


@pytest.mark.parametrize(
    ("said", "of_text", "of_curves"),
    [(PROVEN, LIKELY, POSSIBLE), (LIKELY, LIKELY, POSSIBLE), (POSSIBLE, POSSIBLE, POSSIBLE)],
)
def test_a_finding_on_a_text_is_at_most_likely_and_one_on_curves_at_most_possible(said, of_text, of_curves, tmp_path):
    assert word_on({}, curves=finding("run", confidence=said)).confidence is of_curves
    script = tmp_path / "script.py"
    script.write_text("x = 1\n")
    asked = replace(illness(), source=lambda _: [finding("text", confidence=said)])
    (word,) = diagnose(Evidence(programs=(read_program(script),)), [asked]).words
    assert word.confidence is of_text
    assert word_on({1: finding("batch", confidence=said)}).confidence is said


def chain(*links):
    """(code, confidence, codes that it explains) of findings."""
    return [Word(illness(code, explains=explains), finding("1", confidence=sure)) for code, sure, explains in links]


def test_a_chain_of_causes_ends_at_its_root():
    words = chain(("LOSS05", PROVEN, ()), ("ADV09", PROVEN, ("LOSS05",)), ("REW01", PROVEN, ("ADV09",)))
    assert root_causes(words) == {"LOSS05": "REW01", "ADV09": "REW01"}
    diagnosis = diagnose(Evidence(), [])
    assert (diagnosis.findings, diagnosis.causes) == ([], {})


@pytest.mark.parametrize(
    ("cause", "consequence", "explained"),
    [
        (PROVEN, PROVEN, True),
        (LIKELY, PROVEN, True),  # at least likely is enough
        (POSSIBLE, PROVEN, False),
        (POSSIBLE, LIKELY, False),
        (POSSIBLE, POSSIBLE, True),
        (LIKELY, POSSIBLE, True),
    ],
)
def test_a_merely_possible_cause_explains_nothing_that_is_surer(cause, consequence, explained):
    causes = root_causes(chain(("SAMP01", cause, ("RAT01",)), ("RAT01", consequence, ())))
    assert causes == ({"RAT01": "SAMP01"} if explained else {})


def test_of_two_that_explain_each_other_the_surer_is_the_cause():
    one, other = ("LOSS01", LIKELY, ("RAT04",)), ("RAT04", PROVEN, ("LOSS01",))
    assert root_causes(chain(one, other)) == {"LOSS01": "RAT04"}
    assert root_causes(chain(("LOSS01", PROVEN, ("RAT04",)), other)) == {"RAT04": "LOSS01"}  # by code, if all is equal


def test_only_findings_explain_and_are_explained():
    words = [Word(illness("SAMP01", explains=("RAT01",)), healthy("fine")), *chain(("RAT01", PROVEN, ()))]
    assert root_causes(words) == {}


@pytest.mark.parametrize(
    ("confidence", "severity", "level"),
    [
        (PROVEN, Severity.FATAL, "error"),
        (PROVEN, Severity.HARMFUL, "error"),
        (PROVEN, Severity.WASTEFUL, "warning"),
        (LIKELY, Severity.FATAL, "warning"),
        (POSSIBLE, Severity.FATAL, "note"),
    ],
)
def test_only_what_is_proven_and_more_than_waste_is_an_error(confidence, severity, level):
    assert Word(illness(severity=severity), finding("1", confidence=confidence)).level == level
    other = Severity.WASTEFUL if severity is not Severity.WASTEFUL else Severity.FATAL
    assert Word(illness(severity=other), finding("1", confidence=confidence, severity=severity)).level == level


def test_a_verdict_may_bring_its_own_fix_and_notes_of_the_evidence_are_kept():
    assert Word(illness(), finding("1", fix="mine")).fix == "mine"
    assert Word(illness(), finding("1")).fix == "f"
    assert diagnose(Evidence(notes=("a line is torn",)), []).notes == ("a line is torn",)


def test_a_ring_of_causes_has_a_root():
    codes = ("AAA01", "AAA02", "AAA03")
    ring = [
        Word(illness(code, explains=(codes[(number + 1) % 3],)), finding("1", confidence=PROVEN))
        for number, code in enumerate(codes)
    ]
    causes = root_causes(ring)
    assert len(causes) == 2
    assert len(set(causes.values()) - set(causes)) == 1


def test_whatever_is_found_together_something_is_a_root():
    random = Random(0)
    for _ in range(2000):
        found = random.sample(catalogue(), random.randint(1, 8))
        words = [Word(one, finding("1", confidence=random.choice(list(Confidence)))) for one in found]
        causes = root_causes(words)
        assert len(causes) < len(words)
        assert not set(causes.values()) & set(causes), "what is shown under another is not a root"


def test_a_gradient_that_is_0_from_the_first_step_does_not_follow_from_a_late_collapse():
    steps_N = np.arange(60)
    entropy_N = np.maximum(np.exp(-steps_N / 8.0), 0.02)
    curves = healthy_curves(entropy=entropy_N, reward_mean=0.4 + 0.005 * np.sin(steps_N), gradient_norm=0.0 * steps_N)
    diagnosis = diagnose(of_curves(curves))
    assert {"MET01", "MET05"} <= {word.code for word in diagnosis.findings}
    assert diagnosis.causes.get("MET05") != "MET01"


def test_a_check_without_anything_of_its_kind_claims_nothing_about_the_script(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    words = diagnose(Evidence(programs=(read_program(path),))).of(State.NOT_APPLICABLE)
    assert {word.verdict.message for word in words} == {"nothing of the kind was recognised in the script"}


def test_a_suspicion_in_a_text_is_withdrawn_where_the_numbers_of_its_run_contradict_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("x = 1\n")
    program, run = read_program(script), MadeRun().run
    place = Place("script.py", 1)

    def word(*, text, numbers, seen=run):
        made = illness(source=lambda program: [text], run=lambda run: [numbers])
        return diagnose(Evidence(programs=(program,), run=seen), [made]).words[0]

    doubt, sure = suspected("odd", places=(place,)), likely("odd", places=(place,))
    withdrawn = word(text=doubt, numbers=healthy("fine"))
    assert withdrawn.verdict.state is State.HEALTHY
    assert withdrawn.verdict.message == "fine; line 1 looked otherwise, and the numbers of the run contradict it"
    kept = [
        word(text=sure, numbers=healthy("fine")),  # the run looks at another question
        word(text=doubt, numbers=not_applicable("no such thing")),
        word(text=doubt, numbers=finding("so it is")),
        word(text=doubt, numbers=healthy("fine"), seen=None),
    ]
    assert [found.verdict.state for found in kept] == [State.FINDING] * 4


def found(code, severity, confidence):
    return Word(illness(code, severity=severity), finding("bad", confidence=confidence))


def test_what_spoils_learning_stands_above_waste_and_what_is_possible_stands_last():
    fatal, harmful, wasteful = Severity.FATAL, Severity.HARMFUL, Severity.WASTEFUL
    order = [
        (fatal, PROVEN),
        (harmful, PROVEN),  # a recomputation that failed; the likely one below may follow from it
        (fatal, LIKELY),
        (harmful, LIKELY),
        (wasteful, PROVEN),
        (wasteful, LIKELY),
        (fatal, POSSIBLE),
        (harmful, POSSIBLE),
        (wasteful, POSSIBLE),
    ]
    words = [found(f"X{number:02}", *kind) for number, kind in enumerate(order)]
    Random(0).shuffle(words)
    ranked = Diagnosis(tuple(words)).findings
    assert [(word.severity, word.confidence) for word in ranked] == order


def test_a_consequence_stands_behind_its_cause_however_grave_it_is():
    words = (found("RAT01", Severity.WASTEFUL, LIKELY), found("RAT02", Severity.FATAL, PROVEN))
    ranked = Diagnosis(words, {"RAT02": "RAT01"}).findings
    assert [word.code for word in ranked] == ["RAT01", "RAT02"]

"""What counts as named, what as a false claim, and that the bar can fail. Diagnoses are made by hand."""

import json
import os
import signal
import subprocess
import time

import pytest

from assay.doctor.catalogue import Illness, by_code, catalogue
from assay.doctor.diagnosis import Diagnosis, Word
from assay.verdict import Confidence, Fact, Severity, State, Verdict, finding, healthy
from proof.__main__ import line_on, main
from proof.child import Job, outcomes_of
from proof.healthy import HEALTHY_RUNS
from proof.outcome import Outcome, of_healthy, of_planted
from proof.plants.runs import plants
from proof.table import MARK, Report, markdown, save


def illness(code, severity=Severity.HARMFUL, explains=()):
    nothing = by_code("RAT01")
    return Illness(
        code,
        f"illness_{code.lower()}",
        severity,
        "",
        "",
        "",
        nothing.sick,
        nothing.well,
        explains=frozenset(explains),
    )


ROOT = illness("AAA01", explains=["BBB01"])
CONSEQUENCE, STRANGER = illness("BBB01"), illness("CCC01")
FATAL = illness("DDD01", severity=Severity.FATAL)


def found(one, confidence=Confidence.PROVEN):
    return Word(one, finding("1 of 2 is off", Fact("share", 0.5), confidence=confidence))


def diagnosis(*words, causes=None):
    return Diagnosis(words, causes or {})


def outcome_of(*words, causes=None):
    return of_planted(ROOT, 1, diagnosis(*words, causes=causes), steps=3, seconds=1.0)


def test_the_planted_illness_alone_is_named_first():
    outcome = outcome_of(found(ROOT))
    assert (outcome.rank, outcome.first, outcome.confidence, outcome.sound) == (1, True, "proven", True)


def test_a_consequence_that_the_illness_lists_is_no_false_claim():
    outcome = outcome_of(found(ROOT), found(CONSEQUENCE))
    assert outcome.others == ("BBB01 proven",)
    assert outcome.false_claims == ()


def test_a_consequence_at_the_end_of_a_chain_is_no_false_claim():
    assert outcome_of(found(ROOT), found(STRANGER), causes={"CCC01": "AAA01"}).false_claims == ()


def test_a_proven_stranger_is_a_false_claim():
    outcome = outcome_of(found(ROOT), found(STRANGER))
    assert outcome.false_claims == ("CCC01 proven",)
    assert not outcome.sound


def test_a_likely_stranger_is_no_false_claim_but_can_take_the_first_place():
    outcome = outcome_of(found(ROOT, Confidence.POSSIBLE), found(STRANGER, Confidence.LIKELY))
    assert outcome.false_claims == ()
    assert (outcome.rank, outcome.found, outcome.first) == (2, True, False)


def test_an_illness_that_is_not_found_has_no_rank_and_tells_what_its_check_said():
    outcome = outcome_of(Word(ROOT, healthy("all is well")), found(CONSEQUENCE, Confidence.LIKELY))
    assert (outcome.rank, outcome.found, outcome.first) == (0, False, False)
    assert outcome.message == "healthy: all is well"


def test_a_check_that_crashed_is_counted():
    outcome = outcome_of(found(ROOT), Word(STRANGER, Verdict(State.CRASHED, "KeyError: 'x'")))
    assert outcome.crashed == ("CCC01 KeyError: 'x'",)
    assert not outcome.sound


@pytest.mark.parametrize(
    ("word", "false"),
    [
        (found(STRANGER, Confidence.POSSIBLE), ()),
        (found(STRANGER, Confidence.LIKELY), ("CCC01 likely",)),
        (found(STRANGER), ("CCC01 proven",)),
        (found(FATAL, Confidence.POSSIBLE), ("DDD01 possible",)),
    ],
)
def test_of_a_healthy_run_only_what_is_possible_and_not_fatal_may_be_said(word, false):
    outcome = of_healthy("variant", "", 1, diagnosis(word), steps=8, seconds=1.0)
    assert outcome.false_claims == false
    assert len(outcome.others) == 1


def planted(first, rest=0, **facts):
    named = [Outcome("one", seed, "AAA01", rank=1, **facts) for seed in range(first)]
    return (*named, *(Outcome("one", 100 + seed, "AAA01", rank=2) for seed in range(rest)))


def test_the_bar_is_nineteen_of_twenty():
    assert Report(planted(19, 1), ()).failures == []
    (failure,) = Report(planted(18, 2), ()).failures
    assert "90.0%" in failure


@pytest.mark.parametrize(
    "report",
    [
        Report(planted(20, false_claims=("CCC01 proven",)), ()),
        Report(planted(20, crashed=("CCC01 KeyError",)), ()),
        Report(planted(20, error="TypeError"), ()),
        Report(planted(20), (Outcome("gspo", 1, false_claims=("CCC01 likely",)),)),
        Report(planted(20), (Outcome("gspo", 1, error="the run did not finish"),)),
        Report(planted(20), (Outcome("gspo", 1, crashed=("CCC01 KeyError",)),)),
    ],
)
def test_one_false_claim_one_crash_or_one_broken_trial_fails_the_bar(report):
    assert report.failures


def test_the_tables_are_written_below_the_mark_and_as_json(tmp_path):
    file = tmp_path / "proof.md"
    file.write_text(f"# What this proves\n\n{MARK}\nold tables\n")
    report = Report(planted(2, 1, confidence="proven", others=("BBB01 likely",)), (Outcome("gspo", 1),), command="x")
    save(report, file)
    text = file.read_text()
    assert text.startswith("# What this proves\n")
    assert "old tables" not in text
    assert "| AAA01 | one |  | 3/3 | 2/3 | 1, 2 | proven, - | BBB01 likely | 0.0 |" in text
    assert "named first in 2 (66.7%)" in text
    assert len(json.loads((tmp_path / "proof.json").read_text())["planted"]) == 3
    assert markdown(report) in text


def test_an_illness_that_is_never_planted_is_told():
    assert "EEE01" in " ".join(Report(planted(2), (), never_planted=("EEE01",)).totals())
    assert "never" not in " ".join(Report(planted(2), ()).totals())


def test_a_line_on_a_trial_tells_what_went_wrong():
    assert "named first, proven" in line_on(Outcome("one", 1, "AAA01", rank=1, confidence="proven"))
    assert "NOT FOUND" in line_on(Outcome("one", 1, "AAA01"))
    assert "BROKE: TypeError" in line_on(Outcome("one", 1, "AAA01", error="TypeError"))
    assert "FALSE: CCC01" in line_on(Outcome("one", 1, "AAA01", rank=1, false_claims=("CCC01 proven",)))


def fails(directory):
    raise KeyError("no such plant")


def hangs(directory):
    time.sleep(60)
    return Outcome("never", 1)


def test_a_trial_that_breaks_or_hangs_costs_only_itself(tmp_path):
    def job(work):
        return Job(work, lambda error: Outcome("broken", 1, error=error))

    works = [
        fails,
        hangs,
        lambda directory: os.kill(os.getpid(), signal.SIGTERM),
        lambda directory: Outcome("fine", 1, others=("a", "b")),
    ]
    outcomes = list(outcomes_of([job(work) for work in works], tmp_path, side_by_side=2, longest=1.0))
    errors = sorted(outcome.error for outcome in outcomes)
    assert errors == [
        "",
        "KeyError: 'no such plant'",
        "the trial was killed by signal 15",
        "the trial was killed by signal 9",
    ]
    (fine,) = [outcome for outcome in outcomes if not outcome.error]
    assert fine == Outcome("fine", 1, others=("a", "b"))


def test_the_healthy_runs_are_many_and_their_names_are_unique():
    names = [one.name for one in HEALTHY_RUNS]
    assert len(set(names)) == len(names) >= 25
    assert all(one.steps >= 8 for one in HEALTHY_RUNS)


def test_every_plant_has_its_illness():
    assert set(plants()) <= {one.code for one in catalogue()}
    assert len(plants()) >= 62


def test_an_unknown_name_is_refused(capsys):
    assert main(["NOPE99"]) == 2
    assert "nope99" in capsys.readouterr().err
    assert main(["RAT01", "--no-planted"]) == 2
    assert "nothing to run" in capsys.readouterr().err


def test_the_command_runs_a_trial_and_answers_by_its_exit_code(warm_python, tmp_path):
    out = tmp_path / "tables.md"
    command = [warm_python, "-m", "proof", "RAT02", "--seeds", "1", "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "named first in 1 (100.0%)" in ended.stdout
    assert "[1/1" in ended.stderr
    assert "RAT02" in out.read_text()

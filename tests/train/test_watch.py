"""Whatever breaks in the doctor, the run goes on to the same bits; and a kill in the middle of a look costs nothing."""

import shutil

import pytest
from fixtures.cases import thorough
from fixtures.commands import Trap, contents, rows, settings

from assay.config import load
from assay.doctor import live
from assay.doctor.catalogue import KINDS, by_code, illnesses_looking_at
from assay.doctor.live import LiveDoctor
from assay.record import read_events, read_findings, read_metrics
from assay.train import examine, watch
from assay.train.run import run
from assay.train.watch import DoctorStop
from assay.verdict import Confidence, Severity, finding

# an entropy bonus, two minibatches of two micro-batches, and numbers drawn from the global generators
SICK = settings(evaluate__prompts=0, loss__entropy_coef=0.01)
PLAIN_LOGITS = "assay.policy.plain:plain_logits"
WRITE = "assay.train.watch:RunWatch._write"
LOOK = "assay.doctor.live:diagnose"


def config_of():
    return load(None, [one for one in settings(evaluate__prompts=0, run__steps=2) if "=" in one])


@pytest.fixture(scope="module")
def off(run_root):
    """A run that nobody watches."""
    assert run.start(config_of(), run_root / "nobody" / "off") == 0
    return run_root / "nobody" / "off"


def watched(path, mode="warn"):
    said = []
    code = run.start(config_of(), path, LiveDoctor(mode, said.append, path, stop=DoctorStop))
    return code, said


def broken(error):
    def fails(*given, **named):
        raise error

    return fails


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("examined", NameError("x")),
        ("step", OSError(5, "I/O")),
        ("finished", KeyError(0)),
        *thorough(("step", MemoryError())),
    ],
)
def test_a_doctor_that_breaks_is_told_of_once_and_left_and_the_run_has_the_same_bits(
    run_path, off, monkeypatch, capsys, place, error
):
    monkeypatch.setattr(LiveDoctor, place, broken(error))
    assert watched(run_path)[0] == 0
    assert contents(run_path) == contents(off)
    told = [event["reason"] for event in read_events(run_path).rows if event["kind"] == "doctor failed"]
    assert len(told) == 1
    assert told[0].startswith(f"the doctor broke and is left out from here on: {type(error).__name__}")
    assert capsys.readouterr().err.count("the doctor broke") == 1


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("assay.train.examine.chosen_rows", NameError("x")),
        ("assay.train.examine.RowInputs.take", StopIteration()),
        ("assay.train.examine.settings_of", RecursionError("deep")),
        *thorough(
            ("assay.policy.causal.CausalPolicy.plain_logprobs", MemoryError()),
            ("assay.train.examine.loss_probes", OSError(5, "I/O")),
        ),
    ],
)
def test_an_examination_that_breaks_anywhere_is_told_and_the_run_has_the_same_bits(
    run_path, off, monkeypatch, place, error
):
    monkeypatch.setattr(place, broken(error))
    assert watched(run_path)[0] == 0
    assert contents(run_path) == contents(off)
    reasons = [event["reason"] for event in read_events(run_path).rows if event["kind"] == "not examined"]
    assert len(reasons) == 2
    assert reasons[0].startswith(f"update 1 of step 1 could not be examined: {type(error).__name__}")


def test_every_check_may_break_at_once(run_path, off, monkeypatch):
    from dataclasses import replace

    fails = broken(UnboundLocalError("a variable"))
    sick = tuple(
        replace(one, batch=one.batch and fails, curves=one.curves and fails) for one in illnesses_looking_at(*KINDS)
    )
    monkeypatch.setattr(live, "illnesses_looking_at", lambda *kinds: sick)
    code, said = watched(run_path, "strict")
    assert code == 0
    assert contents(run_path) == contents(off)
    assert len([line for line in said if "broke and says nothing: UnboundLocalError" in line]) == len(
        [one for one in sick if one.batch or one.curves]
    )


def test_rollouts_that_make_no_batch_are_told_of_once(run_path, off, monkeypatch):
    monkeypatch.setattr(live, "batch_of_rows", broken(live.BatchError("mask is ragged")))
    code, said = watched(run_path)
    assert code == 0
    assert [line for line in said if "cannot be looked at" in line] == [
        "doctor: the rollouts of step 1 cannot be looked at: mask is ragged; the run goes on"
    ]


def test_a_file_that_cannot_even_be_made_is_told_and_the_run_has_the_same_bits(run_path, off, monkeypatch, capsys):
    monkeypatch.setattr(watch, "to_bytes", broken(ValueError("Out of range float values")))
    assert watched(run_path)[0] == 0
    assert contents(run_path) == contents(off)
    assert "could not be written: ValueError: Out of range" in capsys.readouterr().err


def test_strict_stops_after_a_checkpoint_also_for_what_follows_from_another_finding(run_path, monkeypatch):
    from dataclasses import replace

    cause = replace(
        by_code("SAMP01"), batch=lambda batch: finding("cause", confidence=Confidence.LIKELY), curves=None,
        explains=frozenset({"RAT01"}),
    )  # fmt: skip
    fatal = replace(by_code("RAT01"), batch=lambda batch: finding("effect"), curves=None, severity=Severity.FATAL)
    monkeypatch.setattr(live, "illnesses_looking_at", lambda *kinds: (cause, fatal))
    with pytest.raises(run.RunFailed, match="the doctor stopped the run: RAT01"):
        watched(run_path, "strict")
    assert list((run_path / "checkpoints").iterdir())
    assert read_metrics(run_path).rows == ()
    assert {row["code"]: row["follows_from"] for row in read_findings(run_path).rows} == {
        "SAMP01": None,
        "RAT01": "SAMP01",
    }


def test_what_an_observer_costs_inside_the_update_is_counted(run_path, monkeypatch):
    import time

    real = examine.Examination._keep

    def slow(*given):
        time.sleep(0.25)
        return real(*given)

    monkeypatch.setattr(examine.Examination, "_keep", slow)
    assert watched(run_path)[0] == 0
    finished = read_events(run_path).rows[-1]
    assert finished["doctor_seconds"] > 1.0  # two updates of two micro-batches


# ---------------------------------------------------------------- real commands, killed


@pytest.fixture(scope="module")
def straight(assay_command, run_root):
    path = run_root / "watched" / "straight"
    ended = assay_command.run("train", *SICK, "--out", path, count=[PLAIN_LOGITS, WRITE, LOOK], draws=True)
    assert ended.code == 0, ended.stderr
    assert ended.passed == {PLAIN_LOGITS: 32, WRITE: 2, LOOK: 7}
    return path


def test_a_watched_run_has_the_bits_of_one_that_is_not(assay_command, run_path, straight):
    ended = assay_command.run("train", *SICK, "--out", run_path, "--doctor", "off", draws=True)
    assert ended.code == 0
    assert contents(run_path) == contents(straight)
    assert not (run_path / "findings.jsonl").exists()
    assert not (run_path / "examined").exists()


@pytest.mark.parametrize(
    ("place", "number", "when", "name"),
    [
        (PLAIN_LOGITS, 12, "before", "KILL"),
        (LOOK, 1, "after", "KILL"),
        (WRITE, 2, "before", "TERM"),
        *thorough(
            (PLAIN_LOGITS, 3, "before", "KILL"), (WRITE, 1, "after", "KILL"), (PLAIN_LOGITS, 3, "before", "TERM")
        ),
    ],
)
def test_a_run_killed_while_it_is_looked_at_goes_on_to_the_same_bits(
    assay_command, run_path, straight, place, number, when, name
):
    trap = Trap(place, number, name, when)
    ended = assay_command.run("train", *SICK, "--out", run_path, traps=[trap], draws=True)
    assert ended.code == {"KILL": -9, "TERM": 143}[name]
    if (run_path / "examined").exists():  # a kill in the middle of a file
        (run_path / "examined" / ".tmp-step-000001-update-1.safetensors").write_bytes(b"half")
    if (run_path / "findings.jsonl").exists():  # and in the middle of a line
        with (run_path / "findings.jsonl").open("ab") as file:
            file.write(b'{"code": "RAT')
    again = assay_command.run("train", "--resume", run_path, draws=True)
    assert again.code == 0, again.stderr
    assert contents(run_path) == contents(straight)
    assert [path.name for path in run_path.rglob(".tmp-*")] == []
    found = [row["code"] for row in read_findings(run_path).rows] if (run_path / "findings.jsonl").exists() else []
    assert len(found) == len(set(found))


def test_damaged_findings_and_a_file_in_the_place_of_a_folder_do_not_end_a_resumed_run(
    assay_command, run_path, straight
):
    update = Trap("assay.train.step.learner:Learner.update", 8, "KILL")
    assert assay_command.run("train", *SICK, "--out", run_path, traps=[update], draws=True).code == -9
    (run_path / "findings.jsonl").write_bytes(b'nonsense\n{"code": 3}\n')
    shutil.rmtree(run_path / "examined")
    (run_path / "examined").write_text("a file")
    ended = assay_command.run("train", "--resume", run_path, draws=True)
    assert ended.code == 0, ended.stderr
    assert contents(run_path) == contents(straight)
    assert "what was found before is unknown" in ended.stderr
    assert "the run goes on without it" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_sound_run_with_an_entropy_bonus_has_no_finding_on_its_loss(straight):
    found = rows(straight / "findings.jsonl") if (straight / "findings.jsonl").exists() else []
    assert [row["code"] for row in found if row["code"] == "LOSS06"] == []

"""The doctor beside a run: it says a thing once, records it once, stops only when told to, and is no noise."""

from dataclasses import replace

import pytest
from fixtures.commands import rows, settings
from fixtures.fake_records import fake_record

from assay.config import Config, load, to_toml
from assay.doctor import live
from assay.doctor.catalogue import by_code
from assay.doctor.examples import healthy_batch
from assay.doctor.live import LiveDoctor, is_curves_look
from assay.record import RunDirectory, metrics_row, read_findings, timings_row
from assay.verdict import Confidence, finding


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", to_toml(Config(), meanings=False), {}).path


class Stopped(Exception):
    pass


def doctor_of(directory, mode="warn", **how):
    said = []
    return LiveDoctor(mode, lines_to(said), directory, stop=Stopped, **how), said


def lines_to(said):
    return lambda text: said.extend(text.splitlines())


def sick_batch(code):
    (batch,) = by_code(code).sick().batches
    return batch


def told(said):
    return [line for line in said if line.startswith("doctor: ") and " at step " in line]


def only(monkeypatch, check, **changes):
    """A catalogue of one illness."""
    illness = replace(by_code("RAT01"), batch=check, curves=None, **changes)
    monkeypatch.setattr(live, "illnesses_looking_at", lambda *kinds: (illness,))


def test_a_finding_is_told_at_once_with_evidence_and_fix_and_never_again(directory, monkeypatch):
    only(monkeypatch, by_code("RAT01").batch)
    doctor, said = doctor_of(directory)
    doctor.examined(sick_batch("RAT01"))
    assert said[0].startswith("doctor: RAT01 ratio_not_one (harmful, proven) at step 5: the ratio is not 1")
    assert any(line.startswith("  largest |new - old| = ") for line in said)
    assert said[-2:] == [f"  fix: {by_code('RAT01').fix}", "  more: assay explain RAT01"]
    (row,) = [row for row in read_findings(directory).rows if row["code"] == "RAT01"]
    assert (row["step"], row["severity"], row["confidence"], row["follows_from"]) == (5, "harmful", "proven", None)
    assert row["evidence"][0].startswith("largest |new - old|")
    assert set(row) >= {"time", "name", "message", "fix"}
    before = read_findings(directory).rows
    doctor.examined(sick_batch("RAT01"))
    assert len(told(said)) == 1
    assert read_findings(directory).rows == before


def test_a_resumed_run_does_not_tell_again_what_was_told(directory):
    doctor_of(directory)[0].examined(sick_batch("RAT01"))
    before = read_findings(directory).rows
    doctor, said = doctor_of(directory)
    doctor.examined(sick_batch("RAT01"))
    assert told(said) == []
    assert read_findings(directory).rows == before


def test_a_healthy_batch_is_met_with_silence(directory):
    doctor, said = doctor_of(directory, "strict")
    doctor.examined(healthy_batch())
    assert said == []
    assert read_findings(directory).rows == ()


def test_strict_stops_on_a_proven_fatal_finding_and_warn_does_not(directory):
    doctor_of(directory)[0].examined(sick_batch("ALGN01"))
    doctor, _ = doctor_of(directory, "strict")
    with pytest.raises(Stopped, match=r"the doctor stopped the run: ALGN01 shift: .*; the run is saved"):
        doctor.examined(sick_batch("ALGN01"))
    doctor.examined(sick_batch("RAT01"))  # harmful: no reason to stop


def test_what_is_only_possible_is_recorded_and_counted_at_the_end(directory, monkeypatch):
    only(monkeypatch, lambda batch: finding("perhaps", confidence=Confidence.POSSIBLE))
    doctor, said = doctor_of(directory)
    doctor.examined(healthy_batch())
    assert said == []
    doctor.finished()
    assert said == [
        f"doctor: 1 possible, 0 checks found their part healthy in 1 looks; see them with: assay doctor {directory}"
    ]
    assert [row["confidence"] for row in read_findings(directory).rows] == ["possible"]


def test_what_becomes_surer_is_told_and_recorded_again(directory, monkeypatch):
    sure = [Confidence.POSSIBLE, Confidence.PROVEN, Confidence.LIKELY]
    only(monkeypatch, lambda batch: finding("perhaps", confidence=sure.pop(0)))
    doctor, said = doctor_of(directory)
    for _ in range(3):
        doctor.examined(healthy_batch())
    assert len(told(said)) == 1
    assert [row["confidence"] for row in read_findings(directory).rows] == ["possible", "proven"]


def test_a_check_that_breaks_is_told_once_and_the_run_goes_on(directory, monkeypatch):
    only(monkeypatch, lambda batch: 1 / 0)
    doctor, said = doctor_of(directory, "strict")
    doctor.examined(healthy_batch())
    doctor.examined(healthy_batch())
    (line,) = said
    assert "the check RAT01 broke and says nothing: ZeroDivisionError" in line


def test_a_consequence_is_named_under_its_cause_also_if_it_is_seen_later(directory, monkeypatch):
    cause = replace(by_code("ALGN01"), batch=lambda batch: finding("cause"), curves=None, explains=frozenset({"RAT01"}))
    effects = []
    effect = replace(by_code("RAT01"), batch=lambda batch: finding("effect") if effects else cause.batch(batch))
    known = {True: (cause, replace(effect, curves=None)), False: (cause,)}
    monkeypatch.setattr(live, "illnesses_looking_at", lambda *kinds: known[bool(effects)])
    doctor, said = doctor_of(directory)
    doctor.examined(healthy_batch())
    effects.append("now")
    doctor.examined(healthy_batch())
    assert [line.split()[1] for line in told(said)] == ["ALGN01"]
    assert [(row["code"], row["follows_from"]) for row in read_findings(directory).rows] == [
        ("ALGN01", None),
        ("RAT01", "ALGN01"),
    ]


def test_looks_that_would_cost_too_much_are_left_out(directory):
    """Each reading of the clock is a second: every look takes at least one, far more than its share."""
    seconds = iter(range(10_000))
    doctor, _ = doctor_of(directory, clock=lambda: float(next(seconds)))
    looks = []
    for step in range(1, 9):
        record = fake_record(step)
        doctor.step(record, metrics_row(record), timings_row(record))
        looks.append(doctor._looks)
    assert looks == [2, 4, 4, 4, 4, 4, 4, 4]
    doctor, _ = doctor_of(directory, clock=lambda: 0.0)
    for step in range(1, 9):
        record = fake_record(step)
        doctor.step(record, metrics_row(record), timings_row(record))
    assert doctor._looks == 8 + 4  # the curves eight times, the rollouts of steps 1, 2, 4, 8


def test_an_odd_step_is_looked_at_once_whatever_the_schedule(directory):
    doctor, _ = doctor_of(directory, clock=iter(range(100_000)).__next__)  # no look is affordable any more
    looks = []
    for step in range(1, 10):
        record = fake_record(step)
        odd = {"rollouts_unscored": 1 if step in (5, 6, 8) else 0, "mismatch_max": 0.0, "mismatch_mean": 0.0}
        row = metrics_row(record) | odd
        doctor.step(record, row, timings_row(record))
        looks.append(doctor._looks)
    assert looks == [2, 4, 4, 4, 6, 6, 6, 8, 8]  # rollouts and curves of 5; 6 is as 5 was; 8 is news again


def test_curves_are_looked_at_often_first_and_then_every_fifth_step():
    assert [step for step in range(8, 27) if is_curves_look(step)] == [8, 9, 10, 15, 20, 25]


def test_the_curves_of_a_resumed_run_begin_at_its_first_step(directory):
    for step in (1, 2):
        RunDirectory(directory).append_step(fake_record(step))
    doctor, _ = doctor_of(directory)
    record = fake_record(3)
    RunDirectory(directory).append_step(record)
    doctor.step(record, metrics_row(record), timings_row(record))
    assert doctor._curves().steps.tolist() == [1, 2, 3]


def test_an_unknown_mode_is_refused(directory):
    with pytest.raises(ValueError, match="must be warn or strict"):
        doctor_of(directory, "loud")


# ---------------------------------------------------------------- real runs

SOUND = {
    "default": {},
    "dr_grpo, no std": {"loss__objective": "dr_grpo", "advantage__std": "none"},
    "rloo": {"advantage__baseline": "leave_one_out", "advantage__std": "none", "optimizer__epochs": 1},
    "gspo": {"loss__objective": "gspo", "optimizer__minibatches": 1, "optimizer__epochs": 1},
    "cispo, reference": {"loss__objective": "cispo", "loss__kl_coef": 0.1, "loss__reference_every": 1},
    "sapo, KL in the reward": {"loss__objective": "sapo", "loss__kl_coef": 0.1, "loss__kl_placement": "reward"},
    "top-k, masked": {"rollout__top_k": 5, "rollout__truncated": "mask", "rollout__temperature": 0.8},
    "adapters in bfloat16": {"model__lora_rank": 4, "model__dtype": "bfloat16", "loss__kl_coef": 0.1},
}


@pytest.mark.parametrize("variant", SOUND)
def test_a_sound_run_is_not_accused(assay_command, run_path, variant):
    ended = assay_command.run("train", *settings(**SOUND[variant], evaluate__prompts=0), "--out", run_path)
    assert ended.code == 0, ended.stderr
    found = rows(run_path / "findings.jsonl") if (run_path / "findings.jsonl").exists() else []
    assert [row for row in found if row["confidence"] != "possible"] == []
    assert "doctor: " in ended.stderr
    assert "could not be examined" not in ended.stderr
    assert " broke and says nothing" not in ended.stderr
    assert len(list((run_path / "examined").iterdir())) == 2


def test_the_doctor_can_be_sent_away_and_a_wrong_word_is_refused(assay_command, run_path):
    ended = assay_command.run("train", *settings(run__steps=1), "--doctor", "off", "--out", run_path)
    assert ended.code == 0
    assert "doctor" not in ended.stderr
    assert not (run_path / "examined").exists()
    wrong = assay_command.run("train", *settings(), "--doctor", "loud", "--out", run_path.parent / "other")
    assert (wrong.code, wrong.sentences) == (2, ["assay: --doctor loud is not one of off, warn, strict"])


def test_damaged_curves_of_earlier_steps_are_left_out_and_the_doctor_goes_on(directory):
    (directory / "metrics.jsonl").write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    doctor, said = doctor_of(directory)
    doctor.begin(3)
    doctor.begin(3)
    assert doctor.rows == []
    (sentence,) = said
    assert "the curves of earlier steps are left out" in sentence
    assert "metrics.jsonl" in sentence


def test_a_run_that_the_strict_doctor_stops_is_saved_and_goes_on_with_warn(run_path):
    from assay.train.run import run
    from assay.train.watch import DoctorStop
    from proof.plants.runs import plants
    from proof.trial import apply_plant

    plant = plants()["ALGN01"]
    larger = settings(evaluate__prompts=0, rollout__prompts=8, rollout__group_size=8, task__options__max_digits=5)
    config = load(None, [*(one for one in larger if "=" in one), *plant.settings, "optimizer.minibatches=1"])
    said = []
    with apply_plant(plant.replaces):
        with pytest.raises(run.RunFailed, match="the doctor stopped the run: ALGN01 shift"):
            run.start(config, run_path, LiveDoctor("strict", lines_to(said), run_path, stop=DoctorStop))
        assert rows(run_path / "events.jsonl")[-1]["kind"] == "failed"
        assert rows(run_path / "metrics.jsonl") == []
        assert len(told(said)) == 1
        assert run.resume(run_path, watcher=LiveDoctor("warn", lines_to(said), run_path, stop=DoctorStop)) == 0
    assert len(rows(run_path / "metrics.jsonl")) == 3
    assert len(told(said)) == 1

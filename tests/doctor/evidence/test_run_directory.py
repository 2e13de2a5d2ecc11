"""Runs as evidence: whole, under way, killed, damaged, empty; and single files."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from fixtures.fake_records import fake_record
from safetensors.numpy import save_file

from assay.config import Config, to_toml
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.open import open_evidence
from assay.doctor.evidence.run_directory import EXAMINED, read_run, spread
from assay.doctor.examples import healthy_batch
from assay.record import RunDirectory, RunError
from assay.record.batch import BatchError
from assay.record.batch_file import write_batch
from assay.verdict import State

GROUPS_OF_TWO = to_toml(Config(), meanings=False).replace("group_size = 8", "group_size = 2")


def made_run(path, steps=3, config=GROUPS_OF_TWO):
    run = RunDirectory.create(path, config, {"python": "3.11"})
    for step in range(1, steps + 1):
        run.append_step(fake_record(step))
    return path


def examine(run, step, update=1):
    (run / "examined").mkdir(exist_ok=True)
    file = run / "examined" / f"step-{step:06d}-update-{update}.safetensors"
    write_batch(file, healthy_batch(step=step))
    return file


def test_a_whole_run_has_curves_settings_and_batches(tmp_path):
    run = made_run(tmp_path / "run")
    examine(run, 1)
    RunDirectory(run).append_evaluation({"step": 0, "pass_at_1": 0.25})
    RunDirectory(run).append_event("finished", seconds=2.0)
    evidence = read_run(run)
    assert evidence.notes == ()
    assert evidence.curves.steps.tolist() == [1, 2, 3]
    assert evidence.curves.need("loss")[0].tolist() == [0.5, 0.5, 0.5]
    assert evidence.curves.need_timings("seconds")[0].tolist() == [2.0, 2.0, 2.0]
    assert [row["pass_at_1"] for row in evidence.curves.evaluations] == [0.25]
    assert [row["kind"] for row in evidence.curves.events] == ["finished"]
    assert evidence.curves.setting("objective") == "dapo"
    assert [batch.step for batch in evidence.batches] == [1, 1, 2, 3]
    assert evidence.batches[0].source == "step-000001-update-1.safetensors"
    assert evidence.batches[1].setting("temperature") == 1.0
    assert "step 2" in evidence.batches[2].source


def test_of_many_steps_the_first_the_last_and_some_between_are_read(tmp_path):
    run = made_run(tmp_path / "run", steps=20)
    assert [batch.step for batch in read_run(run).batches] == [1, 5, 9, 12, 16, 20]
    assert spread([3, 9], 6) == [3, 9]
    assert spread([7], 6) == [7]


def test_of_many_examined_updates_the_newest_are_read(tmp_path):
    run = made_run(tmp_path / "run", steps=0)
    for step in (*range(1, EXAMINED + 3), 1_000_000):
        examine(run, step)
    steps = [batch.step for batch in read_run(run).batches]
    assert steps == [*range(4, EXAMINED + 3), 1_000_000]


def test_a_run_that_has_just_begun_is_read_and_says_so(tmp_path):
    run = made_run(tmp_path / "run", steps=0)
    evidence = read_run(run)
    assert evidence.batches == ()
    assert len(evidence.curves) == 0
    assert any("no whole step" in note for note in evidence.notes)
    assert not diagnose(evidence).of(State.CRASHED)


def test_a_torn_last_line_is_left_out_with_a_note(tmp_path):
    run = made_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "lo')
    evidence = read_run(run)
    assert len(evidence.curves) == 3
    (note,) = evidence.notes
    assert "metrics.jsonl line 4 was cut off" in note


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"loss": 1}', b'{"step": "1"}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_line_is_left_out_with_a_note(tmp_path, line):
    run = made_run(tmp_path / "run")
    whole = (run / "metrics.jsonl").read_bytes().splitlines()
    (run / "metrics.jsonl").write_bytes(b"\n".join([whole[0], line, whole[2], b""]))
    evidence = read_run(run)
    assert evidence.curves.steps.tolist() == [1, 3]
    assert any("metrics.jsonl line 2 is damaged" in note for note in evidence.notes)


def test_what_is_no_number_never_reaches_a_curve(tmp_path):
    run = made_run(tmp_path / "run", steps=1)
    row = json.loads((run / "metrics.jsonl").read_text())
    (run / "metrics.jsonl").write_text(json.dumps({**row, "loss": "much", "entropy": [1]}) + "\n")
    assert not read_run(run).curves.has("loss")


def test_damaged_files_are_named_and_the_rest_is_read(tmp_path):
    run = made_run(tmp_path / "run")
    examine(run, 1).write_bytes(b"no safetensors")
    examine(run, 2)
    (run / "rollouts" / "step-000002.parquet").write_bytes(b"PAR1 and nothing more")
    evidence = read_run(run)
    assert [batch.step for batch in evidence.batches] == [2, 1, 3]
    assert any("step-000001-update-1.safetensors" in note for note in evidence.notes)
    assert any("step-000002.parquet" in note for note in evidence.notes)


def test_a_step_without_its_metrics_line_was_not_finished_and_is_not_read(tmp_path):
    run = made_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    assert [batch.step for batch in read_run(run).batches] == [1, 2]


def test_a_config_of_another_version_is_a_note(tmp_path):
    run = made_run(tmp_path / "run", config="[run]\nunheard_of = 3\n")
    evidence = read_run(run)
    assert evidence.curves.settings == {"eos_ids": (1,)}
    assert any("config.toml" in note and "unheard_of" in note for note in evidence.notes)
    (run / "config.toml").unlink()
    assert any("config.toml" in note for note in read_run(run).notes)


def test_missing_files_are_notes(tmp_path):
    run = made_run(tmp_path / "run")
    (run / "timings.jsonl").unlink()
    (run / "events.jsonl").unlink()
    evidence = read_run(run)
    assert len(evidence.curves) == 3
    assert sorted(re.findall(r"\w+\.jsonl", " ".join(evidence.notes))) == ["events.jsonl", "timings.jsonl"]


def test_without_its_mark_a_run_is_read_as_long_as_there_is_anything(tmp_path):
    run = made_run(tmp_path / "run")
    (run / "run.json").unlink()
    assert any("run.json" in note for note in read_run(run).notes)
    (run / "run.json").write_text("{")
    assert any("run.json is damaged" in note for note in read_run(run).notes)


def test_rollouts_alone_are_enough(tmp_path):
    run = made_run(tmp_path / "run")
    (tmp_path / "part").mkdir()
    shutil.copytree(run / "rollouts", tmp_path / "part" / "rollouts")
    assert len(read_run(tmp_path / "part").batches) == 3


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: (path.mkdir(), (path / "notes.txt").write_text("x")), "is not a run directory"),
    ],
)
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path, make, sentence):
    make(tmp_path / "run")
    with pytest.raises(RunError, match=sentence) as refusal:
        read_run(tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert "assay train" in str(refusal.value)


def test_a_record_of_a_newer_assay_is_refused(tmp_path):
    run = made_run(tmp_path / "run")
    (run / "run.json").write_text('{"schema_version": 99}')
    with pytest.raises(RunError, match="newer Assay"):
        read_run(run)


def test_a_trainer_with_the_doctor_attached_lacks_neither_a_config_nor_rollouts(tmp_path):
    run = made_run(tmp_path / "output" / "assay")
    shutil.rmtree(run / "rollouts")
    (run / "config.toml").unlink()
    examine(run, 3)
    assert len(read_run(run).notes) == 2
    (run / "run.json").write_text('{"schema_version": 1, "trainer": "trl"}')
    assert read_run(run).notes == ()
    with pytest.raises(BatchError, match=f"recorded is in {run}: give that"):
        open_evidence(tmp_path / "output")
    state = {"log_history": [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]}
    (tmp_path / "output" / "trainer_state.json").write_text(json.dumps(state))
    assert str(run) in open_evidence(tmp_path / "output").notes[-1]


def test_extremes_are_said_to_be_only_a_part(tmp_path):
    config = GROUPS_OF_TWO.replace("group_size = 2", "group_size = 4")  # and two of the four are recorded
    evidence = read_run(made_run(tmp_path / "run", config=config))
    assert "rewards" not in evidence.batches[0].arrays
    assert any("3 of 3 steps" in note and "extremes" in note for note in evidence.notes)


def test_a_directory_and_a_batch_file_are_opened_by_what_they_are(tmp_path):
    run = made_run(tmp_path / "run")
    assert len(open_evidence(run).batches) == 3
    file = tmp_path / "mine.safetensors"
    write_batch(file, healthy_batch())
    (batch,) = open_evidence(file).batches
    assert batch.number("loss") == healthy_batch().number("loss")


@pytest.mark.parametrize("name", ["gone.safetensors", "log.txt", "damaged.safetensors", "empty.safetensors"])
def test_files_that_cannot_be_read_are_refused_by_name(tmp_path, name):
    (tmp_path / "log.txt").write_text("step 1 loss 0.5")
    (tmp_path / "damaged.safetensors").write_bytes(b"\x00" * 20)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(BatchError, match=re.escape(name)) as refusal:
        open_evidence(tmp_path / name)
    assert "\n" not in str(refusal.value)


def dump(run, name="step-000003-update-2.safetensors", **changes):
    """Two micro-batches, one row of two tokens and one of three."""
    tensors = {
        "0.targets_BT": np.array([[5, 1]]),
        "0.mask_BT": np.array([[True, True]]),
        "0.sampler_BT": np.array([[-0.5, -0.25]], dtype=np.float32),
        "0.advantages_BT": np.array([[1.0, 1.0]], dtype=np.float32),
        "0.old_BT": np.array([[-0.5, np.nan]], dtype=np.float32),
        "0.ids_RS": np.array([[4, 5, 1]]),
        "1.targets_BT": np.array([[6, 7, 1]]),
        "1.mask_BT": np.array([[True, True, False]]),
        "1.sampler_BT": np.array([[-1.0, -2.0, -3.0]], dtype=np.float32),
        "1.advantages_BT": np.array([[-1.0, -1.0, -1.0]], dtype=np.float32),
        "1.old_BT": np.array([[-1.0, -2.0, -3.0]], dtype=np.float32),
        "1.ids_RS": np.array([[4, 6, 7, 1]]),
    }
    chosen = {key: value for key, value in (tensors | changes).items() if value is not None}
    save_file(chosen, run / "dumps" / name, metadata={"reason": "the loss is nan"})
    return run / "dumps" / name


def test_the_dump_of_a_refused_update_is_a_batch(tmp_path):
    run = made_run(tmp_path / "run")
    (batch,) = open_evidence(dump(run)).batches
    assert batch.arrays["tokens"].tolist() == [[5, 1, 0], [6, 7, 1]]
    assert batch.arrays["mask"].tolist() == [[True, True, False], [True, True, False]]
    np.testing.assert_array_equal(batch.arrays["old_logprobs"], [[-0.5, np.nan, 0.0], [-1.0, -2.0, -3.0]])
    assert batch.arrays["advantages"].tolist() == [[1.0, 1.0, 0.0], [-1.0, -1.0, -1.0]]
    assert (batch.number("step"), batch.number("update")) == (3, 1)
    assert batch.setting("objective") == "dapo"  # of the run it lies in
    assert "ref_logprobs" not in batch.arrays
    assert not diagnose(open_evidence(dump(run))).of(State.CRASHED)


def test_a_dump_without_its_mask_is_refused(tmp_path):
    run = made_run(tmp_path / "run")
    with pytest.raises(BatchError, match="mask_BT"):
        open_evidence(dump(run, **{"1.mask_BT": None}))


def test_a_run_is_read_and_diagnosed_without_torch(tmp_path):
    run = made_run(tmp_path / "run", steps=2)
    examine(run, 1)
    code = (
        "import sys; from pathlib import Path; from assay.doctor.evidence.open import open_evidence\n"
        "from assay.doctor.diagnosis import diagnose\n"
        f"diagnose(open_evidence(Path({str(run)!r})))\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"

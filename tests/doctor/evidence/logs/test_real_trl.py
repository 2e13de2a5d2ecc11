"""What a real run of TRL 1.16 left: 22 steps of GRPO with two rewards on a CPU. real/ holds its files, some packed."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.open import open_evidence
from assay.verdict import State

REAL = Path(__file__).parent / "real"
PACKED = ("trainer_state.json", "events.out.tfevents", "stdout.txt")


def unpacked(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.decompress((REAL / f"{name}.gz").read_bytes()))
    return path


@pytest.mark.parametrize("name", PACKED)
def test_it_is_read_by_what_it_is_and_found_healthy(tmp_path, name):
    path = unpacked(tmp_path, name).rename(tmp_path / "renamed")
    evidence = open_evidence(path)
    assert evidence.notes[0].startswith("read as a log of TRL: 16 metrics of 22 steps")
    diagnosis = diagnose(evidence)
    assert not diagnosis.findings
    assert not diagnosis.of(State.CRASHED)
    assert len(diagnosis.of(State.HEALTHY)) >= 9


def test_the_state_the_events_and_the_printed_lines_say_the_same(tmp_path):
    state, events, printed = (open_evidence(unpacked(tmp_path, name)).curves for name in PACKED)
    names = [name for name in state.rows[0] if name != "step"]
    for name in names:
        np.testing.assert_allclose(events.need(name)[0], state.need(name)[0], rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(printed.need(name)[0], state.need(name)[0], rtol=2e-3, err_msg=name)
    assert state.steps.tolist() == events.steps.tolist() == list(range(1, 23))
    assert np.isnan(printed.steps).all()  # the lines do not tell
    assert state.settings["steps"] == 22
    assert state.settings["max_reward"] == 2.0  # two rewards that add up


def test_the_events_hold_the_settings_too(tmp_path):
    settings = open_evidence(unpacked(tmp_path, "events.out.tfevents")).curves.settings
    assert settings["learning_rate"] == 3e-4
    assert (settings["kl_coef"], settings["group_size"], settings["clip_norm"]) == (0.02, 4, 1.0)


def test_an_event_file_cut_anywhere_gives_what_was_whole(tmp_path):
    path = unpacked(tmp_path, "events.out.tfevents")
    data = path.read_bytes()
    for length in range(len(data) // 2, len(data) // 2 + 40):
        path.write_bytes(data[:length])
        evidence = open_evidence(path)
        assert 8 < len(evidence.curves) < 14
        whole = evidence.curves.need("loss")[0]
        assert np.isfinite(whole[:-1]).all()
    assert any("cut off" in note for note in evidence.notes)


def test_an_event_that_is_damaged_inside_is_left_out(tmp_path):
    path = unpacked(tmp_path, "events.out.tfevents")
    data = bytearray(path.read_bytes())
    at = data.index(b"train/loss") - 3  # the length of the value
    data[at] = 0xFF
    path.write_bytes(bytes(data))
    evidence = open_evidence(path)
    assert any("damaged event" in note for note in evidence.notes)
    assert len(evidence.curves) == 22


def test_dumped_completions_are_a_batch_whose_reward_is_the_sum_of_its_parts():
    (batch,) = open_evidence(REAL / "completions_00009.parquet").batches
    assert batch.step == 9
    assert batch.arrays["group_ids"].tolist() == np.repeat(np.arange(8), 4).tolist()
    rewards_GS, advantages_GS = (batch.arrays[name].reshape(8, 4) for name in ("rewards", "advantages"))
    centred_GS = rewards_GS - rewards_GS.mean(axis=1, keepdims=True)
    expected_GS = centred_GS / (rewards_GS.std(axis=1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(advantages_GS, expected_GS, atol=1e-5)
    assert len(set(batch.texts["prompt"])) == 8
    assert not diagnose(open_evidence(REAL / "completions_00009.parquet")).findings


def test_an_output_directory_gives_the_newest_state_and_the_completions(tmp_path):
    old, new = tmp_path / "checkpoint-9", tmp_path / "checkpoint-22"
    old.mkdir()
    new.mkdir()
    unpacked(new, "trainer_state.json")
    (old / "trainer_state.json").write_text('{"global_step": 9, "log_history": [{"step": 9, "reward": 1.0}]}')
    (tmp_path / "completions").mkdir()
    shutil.copy(REAL / "completions_00009.parquet", tmp_path / "completions")
    evidence = open_evidence(tmp_path)
    assert len(evidence.curves) == 22
    assert [batch.step for batch in evidence.batches] == [9]
    assert any("checkpoint-22" in note for note in evidence.notes)
    assert len(open_evidence(new).curves) == 22


def test_a_damaged_newest_state_is_said_and_the_one_before_is_read(tmp_path):
    for step in (10, 22):
        (tmp_path / f"checkpoint-{step}").mkdir()
        unpacked(tmp_path / f"checkpoint-{step}", "trainer_state.json")
    damaged = tmp_path / "checkpoint-22" / "trainer_state.json"
    damaged.write_bytes(damaged.read_bytes()[:5000])
    evidence = open_evidence(tmp_path)
    assert len(evidence.curves) == 22
    assert any("checkpoint-22" in note and "cut off or damaged" in note for note in evidence.notes)


def test_a_folder_of_events_is_one_run_and_of_several_the_newest(tmp_path):
    import os

    for name, when in (("older", 1_000), ("newer", 2_000)):
        (tmp_path / name).mkdir()
        file = unpacked(tmp_path / name, "events.out.tfevents").rename(tmp_path / name / "events.out.tfevents.1.host")
        os.utime(file, (when, when))
    assert any("newer" in note for note in open_evidence(tmp_path).notes)
    assert len(open_evidence(tmp_path / "older").curves) == 22

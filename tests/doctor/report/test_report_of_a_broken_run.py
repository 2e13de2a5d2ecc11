"""What a reader of a broken run is told, in every format; and what `observe` answers to what it cannot use."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures.fake_records import fake_record
from typer.testing import CliRunner

import assay
from assay import observation
from assay.cli import app
from assay.config import Config, RecordConfig, load, to_toml
from assay.doctor.diagnosis import Diagnosis
from assay.doctor.evidence.events import LONGEST, sentences_of
from assay.doctor.evidence.run_directory import read_run
from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.illnesses.loss import loss_formula
from assay.doctor.illnesses.sampling import truncated_sampling
from assay.doctor.report import FORMATS, TEXT_LEFT_OUT, Report, write
from assay.record import RunDirectory
from assay.record.batch import BatchError
from assay.record.batch_file import write_batch
from assay.train.step.failed_rewards import FailedRewards, RewardFailed
from assay.types import Prompt, Rollout, Score, StopReason

TOML = to_toml(Config(), meanings=False).replace("group_size = 8", "group_size = 2")


def made_run(path, steps=3, config=TOML):
    run = RunDirectory.create(path, config, {"python": "3.11"})
    for step in range(1, steps + 1):
        run.append_step(fake_record(step))
    return path


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "120"})


def metrics_of(run):
    return (run / "metrics.jsonl").read_text().splitlines(keepends=True)


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path / "run")


@pytest.mark.parametrize("how", FORMATS)
def test_a_note_is_in_every_format(run, how):
    (run / "config.toml").write_text("[run\n")
    done = doctor(run, "--format", how)
    assert done.exit_code == 0
    assert "config.toml cannot be used" in done.stdout.replace("\\_", "_")


def test_notes_stand_first_for_a_reader(run):
    (run / "config.toml").write_text("[run\n")
    full, concise, page = (doctor(run, "--format", how).stdout.splitlines() for how in ("full", "concise", "md"))
    assert full[2].startswith("note     the settings of the run are unknown")
    assert concise[0].startswith(f"{run}: note the settings of the run are unknown")
    assert page[4].startswith("- note: the settings of the run are unknown")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("# nothing\n", "it is empty"),
        ("[run]\nsteps = 3\n\n[loss]\n", "it lacks [model], [rollout]"),
    ],
)
def test_a_config_without_its_sections_is_a_note_and_no_defaults(run, text, words):
    (run / "config.toml").write_text(text)
    evidence = read_run(run)
    (note,) = evidence.notes
    assert "config.toml" in note
    assert words in note
    assert "objective" not in evidence.curves.settings


def test_deleted_rollouts_are_a_note(run):
    (run / "rollouts" / "step-000002.parquet").unlink()
    (note,) = read_run(run).notes
    assert note.startswith(
        "rollouts/ holds not all of the 3 steps of metrics.jsonl: 1 are missing, the first is step 2"
    )
    for file in (run / "rollouts").iterdir():
        file.unlink()
    (run / "rollouts").rmdir()
    (note,) = read_run(run).notes
    assert note.startswith("rollouts/ holds none of the 3 steps of metrics.jsonl")


def test_a_run_that_records_no_rollouts_lacks_none(tmp_path):
    config = to_toml(replace(Config(), record=RecordConfig(rollouts="none")), meanings=False)
    run = made_run(tmp_path / "run", config=config)
    RunDirectory(run).append_event("finished", seconds=2.0, doctor_seconds=0.1)
    for file in (run / "rollouts").iterdir():
        file.unlink()
    assert read_run(run).notes == ()


def test_deleted_examined_updates_are_a_note_if_the_doctor_watched(run):
    RunDirectory(run).append_event("finished", seconds=2.0)
    assert read_run(run).notes == ()  # --doctor off
    RunDirectory(run).append_event("finished", seconds=2.0, doctor_seconds=0.1)
    (note,) = read_run(run).notes
    assert note.startswith("examined/ holds no update, although the doctor watched")
    (run / "examined").mkdir()
    write_batch(run / "examined" / "step-000001-update-1.safetensors", healthy_batch(step=1))
    assert read_run(run).notes == ()


def test_a_missing_metrics_line_is_a_note(run):
    first, _, third = metrics_of(run)
    (run / "metrics.jsonl").write_text(first + third)
    (note,) = read_run(run).notes
    assert note == "metrics.jsonl lacks 1 of the 3 steps up to its last; the first is step 2"
    (run / "metrics.jsonl").write_text(third)
    assert "lacks 2 of the 3 steps up to its last; the first is step 1" in read_run(run).notes[0]


def test_a_damaged_line_is_not_told_twice(run):
    first, _, third = metrics_of(run)
    (run / "metrics.jsonl").write_text(first + "{\n" + third)
    (note,) = read_run(run).notes
    assert "line 2 is damaged" in note


def test_a_doubled_metrics_line_counts_once_and_is_a_note(run):
    first, second, third = metrics_of(run)
    again = json.dumps({**json.loads(second), "loss": 0.75}) + "\n"
    (run / "metrics.jsonl").write_text(first + second + again + third)
    evidence = read_run(run)
    assert evidence.curves.need("loss")[0].tolist() == [0.5, 0.75, 0.5]
    assert evidence.notes == ("metrics.jsonl holds step 2 more than once (4 lines of 3 steps); the last counts",)


def test_steps_out_of_order_are_sorted_with_a_note(run):
    (run / "metrics.jsonl").write_text("".join(reversed(metrics_of(run))))
    evidence = read_run(run)
    assert evidence.curves.steps.tolist() == [1, 2, 3]
    assert evidence.notes == ("metrics.jsonl does not hold its steps in their order; they are sorted",)


def test_a_metric_that_is_no_number_is_a_note(run):
    first, second, third = metrics_of(run)
    broken = json.dumps({**json.loads(second), "reward_mean": "high", "loss": [1]}) + "\n"
    (run / "metrics.jsonl").write_text(first + broken + third)
    (note,) = read_run(run).notes
    assert note.startswith("metrics.jsonl, line 2: ")
    assert "is not a number and is left out (and 1 more values)" in note


def test_only_the_metrics_are_gone_is_not_told_as_no_step_yet(run):
    (run / "metrics.jsonl").unlink()
    notes = read_run(run).notes
    assert not any("no whole step" in note for note in notes)
    assert any(note.startswith("metrics.jsonl cannot be read") for note in notes)
    (run / "metrics.jsonl").write_text("")
    assert read_run(run).notes == ("metrics.jsonl holds no step, although rollouts/ holds 3; there are no curves",)


def test_why_a_run_died_before_its_first_step_stands_first_and_the_rest_in_one_line(tmp_path):
    run = made_run(tmp_path / "run", steps=0)
    RunDirectory(run).append_event("start", steps=3)
    RunDirectory(run).append_event("failed", reason="the reward is broken")
    done = doctor(run)
    text = done.stdout.splitlines()
    assert text[2] == "note     the run failed: the reward is broken"
    (line,) = [line for line in text if line.startswith("not enough data")]
    assert line.endswith(" checks; missing: a recorded step")
    assert int(line.split()[3]) > 50
    assert len(text) < 20
    one_check = doctor(run, "--select", "RAT01").stdout
    assert "RAT01" in one_check  # the code is still told where it is the only one


def test_a_run_with_data_still_names_what_each_check_lacks(run):
    folded = [line for line in doctor(run).stdout.splitlines() if line.startswith("not enough data")]
    assert len(folded) == 1
    every = doctor(run, "--explain-all-passes").stdout.splitlines()
    lines = [line for line in every if line.startswith("not enough data")]
    assert len(lines) > 1


def test_a_run_killed_or_under_way_says_so():
    begun = {"kind": "start", "steps": 3}
    assert sentences_of([begun]) == ["events.jsonl records no end: the run is still going on, or was killed"]
    assert sentences_of([begun, {"kind": "checkpoint"}, {"kind": "finished"}]) == []
    assert sentences_of([]) == []


def test_only_the_last_end_of_a_run_counts():
    failed, resumed = {"kind": "failed", "reason": "no room"}, {"kind": "resume"}
    assert sentences_of([failed]) == ["the run failed: no room"]
    assert sentences_of([failed, resumed, {"kind": "finished"}]) == []
    assert sentences_of([resumed, {"kind": "stopped", "signal": "SIGTERM"}]) == [
        "the run was stopped by SIGTERM and can be resumed"
    ]


def test_what_went_wrong_on_the_way_is_told_with_its_count():
    skipped = [{"kind": "skipped update", "step": step, "update": 2, "reason": "the loss is nan"} for step in (4, 5)]
    others = [
        {"kind": "damaged checkpoint", "reason": "update-00000020 is cut off"},
        {"kind": "not examined", "reason": "step 1 could not be examined: MemoryError"},
        {"kind": "doctor failed", "reason": ["no text"]},
    ]
    assert sentences_of([*skipped, *others, {"kind": "finished"}]) == [
        "an update was skipped at step 5, update 2 (2 times; this is the last): the loss is nan",
        "a checkpoint is damaged: update-00000020 is cut off",
        "an update was not examined: step 1 could not be examined: MemoryError",
        "the doctor broke while the run was made",
    ]


def test_a_long_reason_is_cut_in_the_middle():
    (sentence,) = sentences_of([{"kind": "failed", "reason": "a" * 5000 + "z"}])
    assert len(sentence) < LONGEST + 50
    assert sentence.endswith("z")


@pytest.mark.parametrize("how", ["json", "sarif", "github", "md"])
def test_what_a_reward_raised_is_not_in_machine_output(how):
    score = Score.failed("ValueError: no number in a\nsecret completion")
    pair = (Prompt("p", "2 + 2?", (1,), "4"), Rollout("p", (1,), (0.0,), StopReason.EOS, 0, "a"))
    count = FailedRewards(load(None, ["reward.max_failed=0"])).count([pair], lambda known, total: None)
    with pytest.raises(RewardFailed) as failure:
        count(0, score)
    notes = tuple(sentences_of([{"kind": "failed", "reason": str(failure.value)}]))
    report = Report("x", Diagnosis((), notes=notes))
    assert "secret completion" in write([report], "full", width=500)
    text = write([report], how)
    assert "secret" not in text
    assert "the reward could not be computed for 1 of 1 completions" in text
    assert TEXT_LEFT_OUT in text or "&lt;text left out&gt;" in text


def test_a_loss_that_nothing_fits_is_told_in_whole_sentences():
    batch = healthy_batch()
    strange = edit_batch(batch, loss=batch.numbers["loss"] + 0.1234, loss_again=batch.numbers["loss"] + 0.1234)
    message = loss_formula.check_batch(strange).message
    assert message.endswith("; no known variant fits")
    assert ": and" not in message
    assert ": it is " in loss_formula.check_batch(loss_formula.ILLNESS.sick().batches[0]).message


def test_truncation_is_not_said_to_be_the_only_cause():
    assert "nothing else" not in truncated_sampling.ILLNESS.explanation
    assert "SAMP01" in truncated_sampling.ILLNESS.explanation


class Counted(torch.nn.Module):
    def __init__(self, *, tells):
        super().__init__()
        self.table = torch.nn.Embedding(9, 9)
        self.passes = 0
        if tells:
            self.get_input_embeddings = lambda: self.table

    def forward(self, ids):
        self.passes += 1
        return self.table(ids)


def given(**changes):
    fields = {"tokens": [[3, 1, 0], [2, 4, 4]], "mask": [[1, 1, 0], [1, 1, 1]], "temperature": 0.5}
    return {**fields, "prompt_tokens": [[0, 2], [1, 2]], "prompt_mask": [[0, 1], [1, 1]], **changes}


def test_a_model_is_asked_once_a_row():
    model = Counted(tells=False)
    asked = observation._with_plain_logprobs(observation.Batch.of(given()), model)
    assert model.passes == 2
    assert not np.allclose(asked.arrays["plain_logprobs"], asked.arrays["plain_raw_logprobs"])


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("field", ["tokens", "prompt_tokens"])
def test_an_id_outside_of_the_vocabulary_is_one_sentence(tells, field):
    changed = [list(row) for row in given()[field]]
    changed[1][1] = 9
    model = Counted(tells=tells)
    with pytest.raises(BatchError, match="row 1 holds the token id 9, which is outside of the model's vocabulary"):
        assay.observe(**given(**{field: changed}), model=model)
    assert model.passes == (1 if tells else 2)
    changed[1][1] = -1
    with pytest.raises(BatchError, match="token id -1"):
        assay.observe(**given(**{field: changed}), model=model)


def test_padding_outside_of_the_masks_may_be_any_id():
    assay.observe(**given(tokens=[[3, 1, 99], [2, 4, 4]], prompt_tokens=[[-1, 2], [1, 2]]), model=Counted(tells=True))


def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "b.safetensors"):
        with pytest.raises(BatchError, match=r"could not be written: .*; give the path of a file"):
            assay.observe(**given(), write=path)


PROMPTS = {"prompt_tokens": [[0, 0, 5, 6], [1, 2, 3, 4]], "prompt_mask": [[0, 0, 1, 1], [1, 1, 1, 1]]}
WHOLE = [[5, 6, 7, 8, 0, 0], [1, 2, 3, 4, 7, 8]]


@pytest.mark.parametrize(
    ("tokens", "mask"),
    [
        (WHOLE, [[0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]),
        ([[0, 0, 5, 6, 7, 8], WHOLE[1]], [[0, 0, 0, 0, 1, 1]] * 2),  # padded on the left, as many trainers have them
        ([[0, 0, 5, 6, 7, 8], WHOLE[1]], [[1, 1, 1, 1, 1, 1]] * 2),  # and the prompt in the loss
        ([row[1:] for row in WHOLE], [[0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]),  # log-probs had a column less
    ],
)
def test_rows_that_begin_with_their_prompt_are_refused(tokens, mask):
    with pytest.raises(BatchError, match="tokens begin with the prompt of their row"):
        assay.observe(**given(tokens=tokens, mask=mask, **PROMPTS), model=Counted(tells=False))


def test_completions_that_repeat_a_short_prompt_are_not_refused():
    echo = given(tokens=[[2, 2, 1], [1, 2, 4]], mask=np.ones((2, 3)))
    assay.observe(**echo, model=Counted(tells=False))
    one_row = [[5, 6, 7, 8, 0, 0], [8, 2, 3, 4, 7, 8]]
    assay.observe(**given(tokens=one_row, mask=np.ones((2, 6)), **PROMPTS), model=Counted(tells=False))

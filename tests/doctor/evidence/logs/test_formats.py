"""Each format, and what is wrong with files in the wild: it works, or one sentence says what to do."""

import json
import sqlite3
import time
import zipfile

import numpy as np
import pytest
from doctor.evidence.logs.own_names import STEPS, rows_of

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.logs import LogError
from assay.doctor.evidence.open import open_evidence
from assay.record import RunError
from assay.record.batch import BatchError

ROWS = [{"step": step, "loss": step / 10, "reward": 0.5, "grad_norm": 1.0} for step in range(1, 6)]


def written(tmp_path, content, name="log"):
    path = tmp_path / name
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def losses(path):
    return open_evidence(path).curves.need("loss")[0].tolist()


def notes(path):
    return " | ".join(open_evidence(path).notes)


WHOLE = [0.1, 0.2, 0.3, 0.4, 0.5]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        LINES.replace("\n", "\r\n"),
        "\ufeff" + LINES,
        LINES.replace("\n", "\n\n"),
        LINES.rstrip("\n"),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        json.dumps({"log_history": ROWS}),
        json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}),
        json.dumps({name: {str(row["step"]): row[name] for row in ROWS} for name in ("loss", "reward")}, indent=1),
        "".join(json.dumps({"step": row["step"], "data": {"loss": row["loss"]}}) + "\n" for row in ROWS),
        "".join(json.dumps({"tag": "loss", "value": row["loss"], "step": row["step"]}) + "\n" for row in ROWS),
        "step,loss,name\n" + "".join(f"{row['step']},{row['loss']},x\n" for row in ROWS),
        "\ufeffstep;loss;name\r\n" + "".join(f"{row['step']};{row['loss']};x\r\n" for row in ROWS).replace(".", ","),
        "step\tloss\n" + "".join(f"{row['step']}\t{row['loss']}\n" for row in ROWS),
        '"Step","brave-run - loss","brave-run - loss__MIN","brave-run - loss__MAX"\n'
        + "".join(f'"{row["step"]}","{row["loss"]}","0","9"\n' for row in ROWS),
        "starting\n" + "".join(f"  7%| x {{'loss': {row['loss']}, 'epoch': 0.1}}\n" for row in ROWS),
    ],
    ids=range(17),
)
def test_the_same_numbers_in_any_format(tmp_path, content):
    assert losses(written(tmp_path, content)) == WHOLE


def test_lines_that_verl_prints_are_read(tmp_path):
    rows = rows_of("verl")
    lines = [" - ".join(f"{name}:{value!r}" for name, value in row.items()) for row in rows]
    lines = [line.replace("actor/lr:1e-06", "actor/lr:np.float64(1e-06)") for line in lines]
    path = written(tmp_path, "\n".join(f"\x1b[36m(TaskRunner pid=7)\x1b[0m {line}" for line in lines))
    curves = open_evidence(path).curves
    assert len(curves) == STEPS
    np.testing.assert_allclose(curves.need("entropy")[0], [row["actor/entropy"] for row in rows])
    np.testing.assert_allclose(curves.need("learning_rate")[0], 1e-6)


def test_a_last_line_cut_off_and_damaged_lines_are_left_out_and_said(tmp_path):
    path = written(tmp_path, LINES + '{"step": 6, "lo')
    assert losses(path) == WHOLE
    assert "log line 6 was cut off" in notes(path)
    path = written(tmp_path, "warning: no GPU\n" + LINES + "[1, 2]\n")
    assert losses(path) == WHOLE
    assert "log line 1 and 1 more is not a JSON object" in notes(path)


def test_a_damaged_line_in_the_middle_is_left_out_and_said(tmp_path):
    lines = LINES.splitlines(keepends=True)
    path = written(tmp_path, "".join([*lines[:2], "{nonsense\n", "[1, 2]\n", *lines[2:]]))
    assert losses(path) == WHOLE
    assert "log line 3 and 1 more is not a JSON object" in notes(path)


def test_nan_and_infinity_are_gaps_and_said(tmp_path):
    rows = LINES.replace("0.2,", "NaN,").replace("0.4,", "-Infinity,").replace('0.5, "grad', '"inf", "grad')
    path = written(tmp_path, rows)
    assert np.isnan(losses(path)).tolist() == [False, True, False, True, False]
    assert "'loss' is NaN or infinite in 2 of 5 steps, first at step 2" in notes(path)


def test_of_a_step_logged_twice_the_later_counts(tmp_path):
    path = written(tmp_path, [*ROWS, {"step": 3, "loss": 9.0}, {"step": 4, "loss": 8.0}])
    assert losses(path) == [0.1, 0.2, 9.0, 8.0, 0.5]
    assert "2 steps stand more than once" in notes(path)
    assert "more than once" not in notes(written(tmp_path, ROWS))


def test_steps_out_of_order_are_sorted(tmp_path):
    path = written(tmp_path, ROWS[::-1])
    assert losses(path) == WHOLE
    assert "they are sorted" in notes(path)


def test_what_is_no_number_is_passed_over(tmp_path):
    strange = {"loss": [1, 2], "words": "x", "huge": 10**400, "flag": True, "none": None, "deep": {"a": {"b": [1]}}}
    path = written(tmp_path, [*ROWS, {"step": 6, **strange}, {"step": 10**30, "loss": 1.0}])
    assert losses(path)[:5] == WHOLE
    assert open_evidence(path).curves.steps.max() == 6  # the row without a usable step belongs to the last
    nested = json.loads('{"a":' * 50 + "1" + "}" * 50)
    assert losses(written(tmp_path, [{**row, "nested": nested} for row in ROWS])) == WHOLE
    assert losses(written(tmp_path, LINES + '{"a":' * 100_000 + "\n")) == WHOLE


def test_a_chart_of_several_runs_is_read_as_its_first_and_that_is_said(tmp_path):
    path = written(tmp_path, "Step,one - loss,two - loss\n1,0.5,9\n2,0.25,9\n")
    assert losses(path) == [0.5, 0.25]
    assert "2 runs" in notes(path)
    assert "'two'" in notes(path)


def test_rows_of_two_loggers_join_by_their_step(tmp_path):
    rows = rows_of("slime")
    halves = [
        {("rollout/step" if part == "rollout" else "train/step"): row.pop("step", None) or number, **chosen}
        for number, row in enumerate(rows, start=1)
        for part in ("rollout", "train")
        if (chosen := {name: value for name, value in row.items() if name.startswith(part)})
    ]
    path = written(tmp_path, halves)
    assert len(open_evidence(path).curves) == STEPS
    assert not diagnose(open_evidence(path)).findings


def test_a_name_of_the_file_counts_for_nothing(tmp_path):
    assert losses(written(tmp_path, LINES, "picture.png")) == WHOLE


def refused(path):
    with pytest.raises(BatchError) as refusal:
        open_evidence(path)
    sentence = str(refusal.value)
    assert path.name in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("\n\n  \n", "is empty"),
        (b"\x00\x01\x02" * 1000, "is binary"),
        (bytes(range(1, 256)) * 50, "neither JSON lines nor a table"),
        (b"\x80\x04\x95junk", "is a pickle, which runs code"),
        (b"\x1f\x8bjunk", "gunzip"),
        (b":W&B\xe1\xbe\x00", "to_csv"),
        (b"PAR1junk", "damaged Parquet file"),
        ("Dear diary,\ntoday nothing was logged.\n", "neither JSON lines nor a table"),
        ("step 1 loss 0.5", "neither JSON lines nor a table"),
        ('{"loss": 0.5, "_step": 7}\n', None),
        ('{\n "loss": 0.5,\n "_step": 7\n}\n', "a summary and no curve"),
        ('{"log_history": []}', "logged nothing"),
        ('{\n"log_history": [\n{"loss": 1', "cut off or damaged"),
        ("[1, 2, 3]", "holds no row of metrics"),
        ('{"a": 1}\n{"b": 2}\n', "none of its columns is a metric known here ('a', 'b')"),
        ('{"step": 1}\n{"step": 2}\n', "holds no number by a name"),
        ("step,colour\n1,red\n", "holds no number by a name"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=range(19),
)
def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path, content, words):
    path = written(tmp_path, content)
    if words is None:
        assert losses(path) == [0.5]  # one line may be the first of a log
    else:
        assert words in refused(path)


def test_files_of_other_kinds_are_refused_by_kind(tmp_path):
    database = tmp_path / "runs.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table metrics (step int)")
    assert "is a database" in refused(database)
    archive = tmp_path / "rollout_7.pt"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02cos\nsystem\n")
    assert "pickle runs code" in refused(archive)


def test_a_folder_of_wandb_says_what_to_export(tmp_path):
    (tmp_path / "run-1").mkdir()
    written(tmp_path / "run-1", b":W&B\xe1\xbe\x00", "run-abc.wandb")
    with pytest.raises(LogError, match=r"run-abc\.wandb is W&B's own binary.*to_csv"):
        open_evidence(tmp_path)


def test_a_folder_without_any_log_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(RunError, match="nothing that can be read"):
        open_evidence(tmp_path)


def test_a_folder_with_a_log_of_another_trainer_is_read(tmp_path):
    written(tmp_path, rows_of("prime-rl"), "metrics.jsonl")
    assert len(open_evidence(tmp_path).curves) == STEPS
    (tmp_path / "args.json").write_text('{"beta": 0.04, "max_grad_norm": 1.0, "reward_funcs": ["x"]}')
    assert open_evidence(tmp_path).curves.settings["kl_coef"] == 0.04


def test_a_long_file_is_streamed_and_shows_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("assay.machine.terminal.LOG_SECONDS", 0.0)
    path = written(tmp_path, [{"step": step, "loss": 0.5} for step in range(5000)])
    assert len(losses(path)) == 5000
    shown = capsys.readouterr()
    assert shown.err.startswith("reading 'log': ")
    assert shown.err.count("\n") == 3
    assert shown.out == ""


def test_a_first_row_of_any_length_is_one_row(tmp_path):
    wide = [{**row, **{f"column {at}": at for at in range(6000)}} for row in ROWS]
    assert losses(written(tmp_path, wide)) == [row["loss"] for row in ROWS]
    rollouts = [{"prompt": "1+1", "completion": "x" * 100_000 + str(at), "reward": at % 2} for at in range(4)]
    (batch,) = open_evidence(written(tmp_path, rollouts)).batches
    assert batch.arrays["rewards"].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_a_hundred_thousand_columns_are_read_in_time(tmp_path):
    row = {"step": 1, "reward": 0.5, **{f"column {at}": at for at in range(100_000)}}
    began = time.process_time()
    assert "100000 of 100001 columns" in open_evidence(written(tmp_path, [row])).notes[0]
    assert time.process_time() - began < 10  # it took 40


def test_a_link_to_nowhere_keeps_nobody_from_the_log_beside_it(tmp_path):
    for name in ("trainer_state.json", "events.out.tfevents.1"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    written(tmp_path, ROWS, "metrics.jsonl")
    assert losses(tmp_path) == [row["loss"] for row in ROWS]

"""Copies of the metrics, read back from the real TensorBoard, W&B (offline) and trackio."""

import json
import random
import sqlite3
import subprocess
import sys

import numpy
import pytest
import torch

from assay.config import ConfigError, LogConfig
from assay.train.show.completions import CompletionTable
from assay.train.show.sinks import Sinks, numbers_of, open_sinks, require_packages

SETTINGS = {"run": {"name": "sort", "seed": 1}, "reward": {"functions": ("exact",)}}


ROWS = [
    {"prompt_text": "2 | 2 =", "text": text, "rewards": {"a": reward, "b": 0.5}, "reward": reward + 0.5, "error": ""}
    | {"advantage": reward, "token_advantages": None}
    for text, reward in (("four\n<b>", 1.0), ("five", 0.0))
]
TABLE = CompletionTable(2, 9, (ROWS,), ("a", "b"))


def opened(config, directory, *, after_step=-1, failures=None):
    heard = [] if failures is None else failures
    return open_sinks(config, directory, "sort", SETTINGS, after_step=after_step, on_failure=heard.append)


def scalars(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return {tag: [(scalar.step, scalar.value) for scalar in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def generators():
    _, keys, *position = numpy.random.get_state()
    return random.getstate(), keys.tolist(), position, torch.get_rng_state().tolist()


def test_only_finite_numbers_are_copied():
    row = {"step": 2, "a": 1, "b": None, "c": float("nan"), "d": float("inf"), "e": True, "f": "1", "g": [1.0]}
    assert numbers_of(row, "train") == {"train/a": 1.0}


def test_tensorboard_holds_every_row_under_the_step_of_the_run(tmp_path):
    sinks = opened(LogConfig(tensorboard=True), tmp_path)
    sinks.evaluation({"step": 0, "pass_at_1": 0.25, "reward_greedy": None})
    sinks.step({"step": 1, "reward_mean": 0.5, "seconds": {"loss": 2.0}})
    sinks.step({"step": 2, "reward_mean": 0.75})
    sinks.close()
    assert scalars(tmp_path) == {
        "heldout/pass_at_1": [(0, 0.25)],
        "train/reward_mean": [(1, 0.5), (2, 0.75)],
        "train/seconds/loss": [(1, 2.0)],
    }


def test_tensorboard_shows_a_table_of_completions_as_text(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sinks = opened(LogConfig(tensorboard=True), tmp_path)
    sinks.completions(TABLE)
    sinks.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("train/completions")
    assert event.step == 2
    assert event.tensor_proto.string_val[0].decode().splitlines() == [
        "| prompt | completion | a | b | reward | advantage |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 2 &#124; 2 = | four\u21b5&lt;b&gt; | 1.000 | 0.500 | 1.500 | 1.000 |",
        "| 2 &#124; 2 = | five | 0.000 | 0.500 | 0.500 | 0.000 |",
    ]
    assert events.SummaryMetadata("train/completions").plugin_data.plugin_name == "text"


def test_a_row_can_be_read_while_the_run_goes_on(tmp_path):
    sinks = opened(LogConfig(tensorboard=True), tmp_path)
    sinks.step({"step": 1, "loss": 0.5})
    assert scalars(tmp_path) == {"train/loss": [(1, 0.5)]}
    sinks.close()


def test_a_resumed_run_goes_on_after_the_step_of_its_checkpoint(tmp_path):
    sinks = opened(LogConfig(tensorboard=True), tmp_path)
    for step in (1, 2, 3):
        sinks.step({"step": step, "loss": float(step)})
    sinks.close()
    resumed = opened(LogConfig(tensorboard=True), tmp_path, after_step=1)
    resumed.step({"step": 2, "loss": 20.0})
    resumed.close()
    assert scalars(tmp_path) == {"train/loss": [(1, 1.0), (2, 20.0)]}


def test_the_name_of_the_machine_is_in_no_event_file(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "my-secret-host")
    sinks = opened(LogConfig(tensorboard=True), tmp_path)
    sinks.step({"step": 1, "loss": 0.5})
    sinks.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert "tfevents" in file.name
    assert "host" not in file.name
    assert b"my-secret-host" not in file.read_bytes()


def test_wandb_works_offline_and_keeps_its_id_over_a_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr("socket.gethostname", lambda: "my-secret-host")
    for step in (1, 2):
        before = generators()
        sinks = opened(LogConfig(wandb="practice"), tmp_path, after_step=step - 1)
        sinks.step({"step": step, "reward_mean": 0.5})
        sinks.completions(TABLE)
        sinks.close()
        assert generators() == before
    files = sorted(path.name for path in tmp_path.rglob("run-*.wandb"))
    assert len(files) == 2
    assert files[0] == files[1]
    data = b"".join(path.read_bytes() for path in tmp_path.rglob("run-*.wandb"))
    assert b"train/reward_mean" in data
    assert b"functions" in data
    assert b"train/completions" in data
    tables = [json.loads(path.read_text()) for path in tmp_path.rglob("*.table.json")]
    assert tables[0]["columns"] == ["prompt", "completion", "a", "b", "reward", "advantage"]
    assert tables[0]["data"][0] == ["2 | 2 =", "four\n<b>", 1.0, 0.5, 1.5, 1.0]
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {".json", ".log", ".wandb"}  # our id, its own log and the run: no code, no list of packages
    assert b"my-secret-host" not in data


def test_trackio_writes_to_its_local_database_and_says_nothing_on_stdout(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "tracked"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)  # it reads TRACKIO_DIR when it is imported
    random.seed(1)
    before = generators()
    for step in (1, 2):
        sinks = opened(LogConfig(trackio="practice"), tmp_path, after_step=step - 1)
        sinks.step({"step": step, "reward_mean": 0.5 * step})
        sinks.close()
    sinks = opened(LogConfig(trackio="practice"), tmp_path, after_step=2)
    sinks.completions(TABLE)
    sinks.close()
    assert generators() == before
    with sqlite3.connect(tmp_path / "tracked" / "practice.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [(step, metrics) for _, step, metrics in rows[:2]] == [
        (1, b'{"train/reward_mean":0.5}'),
        (2, b'{"train/reward_mean":1.0}'),
    ]
    table = json.loads(rows[2][2])["train/completions"]
    assert (rows[2][1], table["_type"]) == (2, "trackio.table")
    assert table["_value"][1] == {
        "prompt": "2 | 2 =",
        "completion": "five",
        "a": 0.0,
        "b": 0.5,
        "reward": 0.5,
        "advantage": 0.0,
    }
    assert rows[0][0] == rows[1][0]
    assert rows[0][0].startswith("sort-")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("setting", [{"tensorboard": True}, {"wandb": "p"}, {"trackio": "p"}], ids=lambda s: min(s))
def test_a_missing_package_is_refused_with_the_command_that_installs_it(setting, monkeypatch):
    (name,) = setting
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"log\.{name} = .*pip install 'assay\[{name}\]'"):
        require_packages(LogConfig(**setting))


def test_nothing_is_imported_unless_it_is_asked_for(tmp_path):
    code = (
        "import sys; from pathlib import Path; from assay.config.sections import LogConfig; "
        "import assay.train.show.sinks as s;"
        "opened = s.open_sinks(LogConfig(), Path(sys.argv[1]), '', {}, after_step=-1, on_failure=print);"
        "opened.step({'step': 1, 'loss': 1.0}); opened.close();"
        "print([name for name in ('tensorboard', 'wandb', 'trackio') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


class Breaking:
    """A third-party writer whose disk is full from the second row on; it draws from every generator as well."""

    name = "breaking"

    def __init__(self):
        self.rows = []

    def write(self, step, numbers):
        random.random(), numpy.random.rand(), torch.rand(1)
        if self.rows:
            raise OSError("No space left\non device")
        self.rows.append((step, numbers))

    def close(self):
        self.rows.append("closed")


class Working(Breaking):
    name = "working"

    def write(self, step, numbers):
        self.rows.append((step, numbers))


def test_a_sink_that_breaks_is_told_of_once_and_left_while_the_others_go_on():
    breaking, working, failures = Breaking(), Working(), []
    sinks = Sinks([breaking, working], failures.append)
    for step in (1, 2, 3):
        sinks.step({"step": step, "loss": 0.5})
    sinks.close()
    assert failures == [
        "log.breaking failed and is left out from here on: OSError: No space left on device; "
        "metrics.jsonl has every row"
    ]
    assert breaking.rows == [(1, {"train/loss": 0.5})]
    assert [row[0] for row in working.rows[:-1]] == [1, 2, 3]
    assert working.rows[-1] == "closed"


def test_a_sink_never_moves_a_random_state_not_even_when_it_breaks():
    before = generators()
    sinks = Sinks([Breaking()], lambda sentence: None)
    sinks.step({"step": 1, "loss": 0.5})
    sinks.step({"step": 2, "loss": 0.5})
    assert generators() == before


def test_a_sink_that_would_end_the_process_is_left_too():
    class Exiting(Breaking):
        def write(self, step, numbers):
            sys.exit("no more quota")

    working, failures = Working(), []
    sinks = Sinks([Exiting(), working], failures.append)
    for step in (1, 2):
        sinks.step({"step": step, "loss": 0.5})
    (told,) = failures
    assert told.startswith("log.breaking failed and is left out from here on: SystemExit: no more quota;")
    assert [step for step, _ in working.rows] == [1, 2]


def test_an_interrupt_passes_through_a_sink():
    class Interrupted(Breaking):
        def write(self, step, numbers):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sinks([Interrupted()], lambda sentence: None).step({"step": 1, "loss": 0.5})


def test_a_damaged_id_is_refused_by_name(tmp_path):
    (tmp_path / "log-id.json").write_text("{")
    with pytest.raises(ConfigError, match=r"log-id\.json is damaged; remove it"):
        opened(LogConfig(trackio="practice"), tmp_path)

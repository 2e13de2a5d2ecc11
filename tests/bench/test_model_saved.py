"""What a benchmark saves when it is stopped, and how the same command goes on; with stand-ins for the workers."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from assay.config import ConfigError
from benchmarks.model.benchmark import run_benchmark
from benchmarks.model.options import Options
from benchmarks.model.reading import Iteration, Memory, Reading, Work
from benchmarks.model.saved import Run, seconds_of
from benchmarks.model.workload import Job, Workload

PYTHON = sys.executable
SMALL = Workload(prompts=4, group_size=4, prompt_tokens=8, new_tokens=8)
OPTIONS = Options("tiny", SMALL, ("update", "step"), ("assay", "trl"), timed=1, peer_batch=16, peer_caches=("dynamic",))
STOPPED = """
import sys
from pathlib import Path
from benchmarks.model.benchmark import run_benchmark
from benchmarks.model.options import Options
from benchmarks.model.workload import Workload
sys.executable = sys.argv[1]
names = ("generate", "assay")
sys.exit(run_benchmark(Options("tiny", Workload(4, 4, 8, 8), ("rollout", "update"), names, timed=1, repeats=1,
                         peer_caches=("dynamic",), json_path=Path(sys.argv[2]))))
"""


@pytest.fixture
def options(stand_ins, tmp_path):
    return replace(OPTIONS, json_path=tmp_path / "bench.json")


@pytest.fixture(scope="module")
def breakdown(stand_ins, tmp_path_factory):
    """A benchmark whose second run broke after its first reading: its file, what it printed and what it said."""
    path, out, err = tmp_path_factory.mktemp("broken") / "bench.json", io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("STAND_IN_FAULT", "break")
        assert run_benchmark(replace(OPTIONS, json_path=path)) == 1
    return path.read_text(), out.getvalue(), err.getvalue()


@pytest.fixture
def broken(breakdown, options):
    """The document of the broken benchmark, where `options` look for it."""
    options.json_path.write_text(breakdown[0])
    return json.loads(breakdown[0])


def test_what_was_measured_before_a_run_broke_is_kept_and_shown(breakdown):
    text, out, err = breakdown
    document = json.loads(text)
    assert document["complete"] is False
    assert [(run["name"], run["done"], len(run["readings"])) for run in document["turns"]] == [
        ("0-assay", True, 2),
        ("1-trl", False, 1),
    ]
    assert list(document["summaries"]["update"]) == ["assay", "trl"]
    assert list(document["summaries"]["step"]) == ["assay"]
    assert "INCOMPLETE: measured were the runs 0-assay, 1-trl in part" in out
    assert "broken" in err


def test_the_same_command_goes_on_where_it_was_stopped(broken, options, capsys):
    assert run_benchmark(options) == 0
    printed, document = capsys.readouterr(), json.loads(options.json_path.read_text())
    assert document["complete"] is True
    assert [(run["name"], run["done"]) for run in document["turns"]] == [
        ("0-assay", True),
        ("1-trl", True),
        ("2-trl", True),
        ("3-assay", True),
    ]
    assert document["turns"][0] == broken["turns"][0]  # to the last digit of its seconds: it did not run again
    assert document["machine"] == broken["machine"]
    assert len(document["ratios"]["step"]["trl"]) == 2
    assert "run 1 of 4" not in printed.err
    assert "bench.json holds 1 runs of this" in printed.err
    assert "INCOMPLETE" not in printed.out


def test_floors_stay_those_that_the_saved_runs_were_held_against(broken, options):
    broken["machine"]["limits"]["bytes_a_second"] = 7.0
    options.json_path.write_text(json.dumps(broken))
    run_benchmark(options)
    assert json.loads(options.json_path.read_text())["machine"]["limits"]["bytes_a_second"] == 7.0


def test_a_whole_benchmark_is_shown_again_and_not_measured_again(options, monkeypatch, capsys):
    run_benchmark(options)
    before, shown = options.json_path.read_bytes(), capsys.readouterr().out
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert run_benchmark(options) == 0
    again = capsys.readouterr()
    assert again.out == shown
    assert "remove it to measure again" in again.err
    assert options.json_path.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"repeats": 3}, "repeats"),
        ({"workload": replace(SMALL, new_tokens=9)}, "workload"),
        ({"contenders": ("assay",)}, "contenders"),
        ({"model": "135m"}, "model"),
    ],
)
def test_a_file_of_other_options_is_refused(broken, options, changes, name):
    with pytest.raises(ConfigError, match=rf"another comparison \({name} differ\)"):
        run_benchmark(replace(options, **changes))
    assert json.loads(options.json_path.read_text()) == broken


def test_a_file_of_other_versions_is_refused(broken, options):
    broken["compared"]["packages"]["torch"] = "1.0"
    options.json_path.write_text(json.dumps(broken))
    with pytest.raises(ConfigError, match=r"another comparison \(packages differ\)"):
        run_benchmark(options)


def test_a_file_of_another_machine_is_refused(broken, options):
    broken["machine"]["device_name"] = "another cpu"
    options.json_path.write_text(json.dumps(broken))
    with pytest.raises(ConfigError, match=r"another machine or model \(device_name differ\)"):
        run_benchmark(options)
    assert json.loads(options.json_path.read_text()) == broken


@pytest.mark.parametrize("text", ["{", "[]", '{"compared": {}}', '{"readings": []}'])
def test_a_file_of_something_else_is_refused(options, text):
    options.json_path.write_text(text)
    with pytest.raises(ConfigError, match=r"is not a file of benchmarks\.model"):
        run_benchmark(options)
    assert options.json_path.read_text() == text


def test_a_path_that_cannot_be_written_is_refused_before_anything_is_measured(options, capsys):
    (options.json_path.parent / ".tmp-bench.json").mkdir()  # where the file is written before it gets its name
    with pytest.raises(ConfigError, match=r"bench\.json could not be written: Is a directory"):
        run_benchmark(options)
    assert "run 1" not in capsys.readouterr().err


def test_a_directory_that_vanishes_costs_the_file_and_not_the_table(options, monkeypatch, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("STAND_IN_FAULT", "remove")
    monkeypatch.setenv("STAND_IN_PLACE", str(tmp_path / "out"))
    lonely = replace(options, contenders=("assay",), repeats=1, json_path=tmp_path / "out" / "bench.json")
    assert run_benchmark(lonely) == 2
    printed = capsys.readouterr()
    assert "could not be written: No such file or directory" in printed.err
    assert "whole step" in printed.out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_worker_and_leaves_what_was_measured(stand_ins, tmp_path, number, code):
    path, asleep = tmp_path / "bench.json", tmp_path / "asleep"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "STAND_IN_FAULT": "sleep",
        "STAND_IN_PLACE": str(tmp_path),
    }
    process = subprocess.Popen(
        [PYTHON, "-c", STOPPED, str(stand_ins), str(path)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    worker = _when_written(asleep)
    began = time.monotonic()
    process.send_signal(number)
    process.send_signal(number)  # as `timeout` does
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert time.monotonic() - began < 20  # the worker would have slept for a minute
    assert not Path(f"/proc/{worker}").exists()
    document = json.loads(path.read_text())
    assert [(run["name"], run["done"], len(run["readings"])) for run in document["turns"]] == [
        ("0-generate", True, 1),
        ("1-assay", False, 1),
    ]
    assert "INCOMPLETE: measured were the runs 0-generate, 1-assay in part" in out
    assert f"stopped by {signal.Signals(number).name}" in err
    assert not list(tmp_path.glob(".tmp-*"))


def _when_written(path):
    for _ in range(600):
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.05)
    raise AssertionError("the worker did not get there")


def reading(measurement, *seconds):
    job = Job(measurement, SMALL, warmup=1, timed=len(seconds) - 1)
    work = Work("", "", rows=16, shortest=8, longest=8, updates=0, weights=1.0)
    return Reading("trl", job, tuple(Iteration(one, one) for one in seconds), work, Memory(0))


def test_where_the_time_of_a_run_went(tmp_path):
    readings = [reading("update", 3.0, 1.0, 1.5), reading("step", 5.0, 4.0, 2.0), reading("rollout", 4.0, 3.0, 1.0)]
    (tmp_path / "times.json").write_text('{"imports": 7.0, "first_iteration_ended": 12.0}')
    seconds = seconds_of(tmp_path, 40.0, readings, ("update", "step"))
    # 12 - 7 until the first iteration had ended, of which it took 3; the rollout lies inside the step
    assert seconds == {"whole": 40.0, "imports": 7.0, "model": 2.0, "iterations": 16.5}
    assert Run("1-trl", True, seconds, tuple(readings)).line == (
        "took 40.0 s: imports 7.0, model 2.0, iterations 16.5, rest 14.5; update 1.25 s, cold 3 s; "
        "step 3 s, cold 5 s; rollout 2 s, cold 4 s"
    )
    assert seconds_of(tmp_path, 40.0, [], ("update",)) == {"whole": 40.0}  # stopped before it had measured anything


def test_several_settings_are_told_by_their_number():
    run = Run("tune-trl", True, {"whole": 9.0}, (reading("update", 3.0, 1.0), reading("update", 3.0, 2.0)))
    assert run.line == "took 9.0 s; 2 readings"

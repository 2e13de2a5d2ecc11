"""A run directory after a kill between any two system calls, after kills at random moments, and on a full disk."""

from pathlib import Path

import pytest
from fixtures.child_process import run_child
from fixtures.fake_records import contents, fake_record, new_run

from assay.record import RunDirectory, read_events, read_metrics, read_rollouts, read_timings
from assay.record.verify import verify

KILL_AT_EVERY_BOUNDARY = """
import sys
from pathlib import Path
from assay.record import RunDirectory
from assay.record.rollouts import rollout_rows, to_parquet
from fixtures.child_process import kill_at_every_boundary
from fixtures.fake_records import fake_record

base, root, work = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
record = fake_record(3)
to_parquet(rollout_rows(record, keep="all", extremes=1))  # imports what it needs, so that no import counts below

def append(path):
    run = RunDirectory(path)
    run.append_step(record)
    run.append_evaluation({"step": 3})
    run.append_event("stopped")

kill_at_every_boundary(base, root, append if work == "append" else lambda path: RunDirectory(path).rewind(1))
"""


def killed_runs(tmp_path: Path, base: RunDirectory, work: str) -> list[RunDirectory]:
    root = tmp_path / "kills"
    root.mkdir()
    run_child(KILL_AT_EVERY_BOUNDARY, base.path, root, work)
    return [RunDirectory.open(path) for path in sorted(root.iterdir())]


def assert_only_torn(run: RunDirectory) -> None:
    """A kill is not damage: what it cut off is all that may be reported."""
    problems = map(str, verify(run.path).problems)
    assert [problem for problem in problems if "was cut off while" not in problem] == []


def test_a_kill_anywhere_in_an_append_leaves_whole_rows_and_a_run_that_can_go_on(tmp_path):
    base = new_run(tmp_path / "base", steps=2)
    base.append_event("start")
    before = contents(base.path)
    uninterrupted = new_run(tmp_path / "uninterrupted", steps=3)
    uninterrupted.append_evaluation({"step": 3})
    torn, complete = 0, 0
    runs = killed_runs(tmp_path, base, "append")
    for run in runs:
        metrics = read_metrics(run.path)
        assert [row["step"] for row in metrics.rows] in ([1, 2], [1, 2, 3])
        if len(metrics.rows) == 3:
            complete += 1
            assert len(list(read_rollouts(run.path, step=3))) == 4
            assert len(read_timings(run.path).rows) == 3
        assert {row["step"] for row in read_rollouts(run.path)} in ({1, 2}, {1, 2, 3})
        torn += bool(metrics.torn) + bool(read_timings(run.path).torn) + bool(read_events(run.path).torn)
        assert_only_torn(run)
        run.rewind(2)
        assert contents(run.path) == before
        run.append_step(fake_record(3))
        run.append_evaluation({"step": 3})
        assert contents(run.path) == contents(uninterrupted.path)
        assert verify(run.path).problems == []
    assert torn == 3  # each of the three lines was caught half-written once
    assert len(runs) > 20
    assert complete > 8


def test_a_kill_anywhere_in_a_rewind_is_mended_by_rewinding_again(tmp_path):
    base = new_run(tmp_path / "base", steps=3)
    base.append_evaluation({"step": 3})
    wanted = contents(new_run(tmp_path / "wanted", steps=1).path)
    runs = killed_runs(tmp_path, base, "rewind")
    assert len(runs) > 15
    assert sum(contents(run.path) != wanted for run in runs) > 10
    for run in runs:
        assert_only_torn(run)
        run.rewind(1)
        assert contents(run.path) == wanted
        assert verify(run.path).problems == []


KILL_AT_RANDOM_MOMENTS = """
import os, random, signal, sys, time
from pathlib import Path
from assay.record import RunDirectory, read_metrics
from fixtures.fake_records import fake_record

run, pause = RunDirectory.open(Path(sys.argv[1])), random.Random(1)
for kill in range(6):
    child = os.fork()
    if child == 0:
        step = len(read_metrics(run.path).rows)
        run.rewind(step)
        while True:
            step += 1
            run.append_step(fake_record(step))
            run.append_event("step", padding="x" * 20_000)
    before = len(read_metrics(run.path).rows)
    while len(read_metrics(run.path).rows) <= before:
        time.sleep(0.001)
    time.sleep(pause.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_a_run_killed_again_and_again_records_what_an_undisturbed_run_records(tmp_path):
    run = new_run(tmp_path / "run")
    run_child(KILL_AT_RANDOM_MOMENTS, run.path)
    steps = len(read_metrics(run.path).rows)
    assert steps >= 6
    assert [row["step"] for row in read_metrics(run.path).rows] == list(range(1, steps + 1))
    run.rewind(steps)
    assert contents(run.path) == contents(new_run(tmp_path / "undisturbed", steps=steps).path)
    assert verify(run.path).problems == []


APPEND_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from assay.record import RunDirectory, RunError
from fixtures.fake_records import fake_record

run, limit = RunDirectory.open(Path(sys.argv[1])), int(sys.argv[2])
record = fake_record(3)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    run.append_step(record, keep=sys.argv[3])
except RunError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("keep", "file", "extra"),
    [("all", "rollouts/step-000003.parquet", None), ("none", "metrics.jsonl", 100), ("none", "timings.jsonl", 0)],
)
def test_a_full_disk_names_the_file_and_leaves_what_was_recorded(tmp_path, keep, file, extra):
    run = new_run(tmp_path / "run", steps=2)
    before = contents(run.path)
    limit = 1000 if extra is None else (run.path / file).stat().st_size + extra
    message = run_child(APPEND_ON_A_FULL_DISK, run.path, limit, keep)
    assert message.startswith(f"{run.path / file} could not be written: File too large; free some disk space")
    assert (run.path / "metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    assert len(list(read_rollouts(run.path))) == 8
    run.rewind(2)
    assert contents(run.path) == before

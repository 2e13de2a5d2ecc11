"""The run directory: equal bytes for equal runs, refusals in one sentence, no torch, no secrets, documented names."""

import json
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pyarrow.parquet
import pytest
from fixtures.child_process import run_child
from fixtures.fake_records import contents, fake_group, fake_record, new_run

from assay.record import (
    COLUMNS,
    COMPONENT_METRICS,
    METRICS,
    TIMINGS,
    RunDirectory,
    RunError,
    describe_environment,
    read_evaluations,
    read_events,
    read_metrics,
    read_rollouts,
    read_timings,
)
from assay.record.rollouts import schema
from assay.types import Score

DOC = Path(__file__).parents[2] / "docs" / "run-directory.md"
JSONL = ("metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "events.jsonl")

# ---------------------------------------------------------------- equal runs


def test_equal_records_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        run = new_run(tmp_path / name, steps=2)
        run.append_evaluation({"step": 2, "score": 0.1})
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(contents(tmp_path / "a")) == 7


def test_the_order_of_reward_components_does_not_show(tmp_path):
    for name, components in (("a", {"x": 1.0, "y": 2.0}), ("b", {"y": 2.0, "x": 1.0})):
        group = fake_group(0, [Score.of(components), Score.failed("")])
        new_run(tmp_path / name).append_step(fake_record(groups=(group,)))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_time_and_memory_stay_out_of_the_metrics(tmp_path):
    new_run(tmp_path / "a").append_step(fake_record())
    new_run(tmp_path / "b").append_step(fake_record(seconds={"generated": 9.0}, memory_bytes={}))
    different = {name for name, data in contents(tmp_path / "a").items() if contents(tmp_path / "b")[name] != data}
    assert different == {"timings.jsonl"}


# ---------------------------------------------------------------- creating and opening


def test_a_new_run_holds_what_it_was_given(tmp_path):
    run = RunDirectory.create(tmp_path / "deep" / "run", "[run]\n", {"python": "3.11"})
    assert (run.path / "config.toml").read_text() == "[run]\n"
    assert json.loads((run.path / "environment.json").read_text()) == {"python": "3.11"}
    assert json.loads((run.path / "run.json").read_text())["schema_version"] == 1
    assert sorted(path.name for path in run.path.iterdir() if path.is_dir()) == ["checkpoints", "dumps", "rollouts"]
    assert RunDirectory.open(run.path) == run
    assert read_metrics(run.path).rows == ()


def test_an_existing_empty_directory_is_used(tmp_path):
    new_run(tmp_path, steps=1)
    assert len(read_metrics(tmp_path).rows) == 1


def test_an_occupied_path_is_refused_and_left_alone(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"full is not empty; choose another directory with --out, or empty it"):
        new_run(tmp_path / "full")
    with pytest.raises(RunError, match=r"file is a file; choose another directory"):
        new_run(tmp_path / "file")
    assert contents(tmp_path) == before
    new_run(tmp_path / "run")
    with pytest.raises(RunError, match=r"run is not empty; .* or resume the run in it"):
        new_run(tmp_path / "run")


@pytest.mark.parametrize("place", ["{tmp}/file/a/b", "/proc/a/b"], ids=["below a file", "read-only"])
def test_a_path_that_cannot_be_written_is_refused_in_one_sentence(tmp_path, place):
    (tmp_path / "file").write_text("")
    path = Path(place.format(tmp=tmp_path))
    with pytest.raises(RunError) as caught:
        new_run(path)
    assert str(caught.value).startswith(f"the run directory {path} cannot be created: ")
    assert not path.exists()


CREATE_ON_A_FULL_DISK = """
import resource, sys
from base64 import b64encode
from pathlib import Path
from assay.record import RunDirectory, RunError

resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
try:
    RunDirectory.create(Path(sys.argv[1]), "x" * 40, {"python": "y" * 40})
except RunError as error:
    print(error)
"""


def test_a_creation_that_fails_halfway_leaves_nothing(tmp_path):
    message = run_child(CREATE_ON_A_FULL_DISK, tmp_path / "new" / "run")
    assert "cannot be created: File too large; free some disk space" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        (None, "is not a run directory: it holds no run.json"),
        ("", "run.json is damaged"),
        ("[1]", "run.json is damaged: it holds no schema_version"),
        ('{"schema_version": "1"}', "run.json is damaged: it holds no schema_version"),
        ('{"schema_version": 2}', "has schema version 2, this Assay reads up to 1"),
    ],
)
def test_what_is_no_run_of_a_known_version_is_refused(tmp_path, mark, complaint):
    if mark is not None:
        (tmp_path / "run.json").write_text(mark)
    for read in (RunDirectory.open, read_metrics, read_timings, read_evaluations, read_events, read_rollouts):
        with pytest.raises(RunError, match=re.escape(complaint)):
            read(tmp_path)


def test_a_path_that_is_missing_or_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="missing does not exist; give the directory"):
        RunDirectory.open(tmp_path / "missing")
    with pytest.raises(RunError, match="file is a file; give the directory"):
        RunDirectory.open(tmp_path / "file")


# ---------------------------------------------------------------- torn and damaged files


@pytest.mark.parametrize("name", JSONL)
@pytest.mark.parametrize("rest", [b'{"step": 2, "rew', b"{}", b"\x00\x00\x00", b"\xff"])
def test_a_torn_last_line_is_reported_left_out_and_repaired_by_the_next_append(tmp_path, name, rest):
    run = new_run(tmp_path / "run", steps=1)
    run.append_evaluation({"step": 1})
    run.append_event("start")
    whole = (run.path / name).read_bytes()
    (run.path / name).write_bytes(whole + rest)
    read = dict(zip(JSONL, (read_metrics, read_timings, read_evaluations, read_events), strict=True))[name]
    rows = read(run.path)
    assert len(rows.rows) == 1
    assert rows.torn == f"{run.path / name} line 2 was cut off while it was written and is left out"
    run.append_step(fake_record(2))
    run.append_evaluation({"step": 2})
    run.append_event("stop")
    rows = read(run.path)
    assert (len(rows.rows), rows.torn) == (2, "")
    assert (run.path / name).read_bytes().startswith(whole)


@pytest.mark.parametrize("damage", [b'{"step": 2, "rew', b"", b"[]", b'{"step": "2"}', b'{"step": NaN}', b"\xff"])
def test_a_damaged_middle_line_is_an_error_that_names_file_and_line(tmp_path, damage):
    run = new_run(tmp_path / "run", steps=3)
    lines = (run.path / "metrics.jsonl").read_bytes().split(b"\n")
    lines[1] = damage
    (run.path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    for use in (lambda: read_metrics(run.path), lambda: run.rewind(3)):
        with pytest.raises(RunError, match=r"metrics\.jsonl line 2 is damaged"):
            use()


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    run = new_run(tmp_path / "run", steps=1)
    (run.path / "timings.jsonl").unlink()
    with pytest.raises(RunError, match=r"timings\.jsonl cannot be read: No such file"):
        read_timings(run.path)
    with pytest.raises(RunError, match=r"timings\.jsonl could not be written: No such file"):
        run.append_step(fake_record(2))
    assert len(read_metrics(run.path).rows) == 1


def test_a_damaged_or_newer_rollout_file_is_an_error_that_names_it(tmp_path):
    run = new_run(tmp_path / "run", steps=2)
    file = run.path / "rollouts" / "step-000002.parquet"
    whole = file.read_bytes()
    for data in (b"", whole[:-1], b"PAR1" + whole[100:]):
        file.write_bytes(data)
        with pytest.raises(RunError, match=r"step-000002\.parquet is damaged"):
            list(read_rollouts(run.path))
    newer = pyarrow.table({"step": [2]}).replace_schema_metadata({"assay.schema_version": "2"})
    pyarrow.parquet.write_table(newer, file)
    with pytest.raises(RunError, match=r"step-000002\.parquet has schema version 2"):
        list(read_rollouts(run.path))


# ---------------------------------------------------------------- rewinding


def test_rewinding_leaves_the_run_as_it_was_at_that_step(tmp_path):
    run = new_run(tmp_path / "run", steps=2)
    run.append_evaluation({"step": 0, "score": 0.1})
    before = contents(run.path)
    run.append_event("start")
    run.append_step(fake_record(3))
    run.append_step(fake_record(1_000_000))
    run.append_evaluation({"step": 3, "score": 0.2})
    (run.path / "rollouts" / ".tmp-step-000004.parquet").write_bytes(b"half")
    (run.path / ".tmp-metrics.jsonl").write_bytes(b"half")
    with (run.path / "events.jsonl").open("ab") as events:
        events.write(b'{"torn')
    for _ in range(2):
        run.rewind(2)
        assert contents(run.path) == before
        assert [event["kind"] for event in read_events(run.path).rows] == ["start"]
        assert read_events(run.path).torn == ""


def test_rewinding_before_the_first_step_forgets_everything_but_the_events(tmp_path):
    run = new_run(tmp_path / "run", steps=2)
    run.append_event("start")
    run.rewind(-1)
    assert contents(run.path) == contents(new_run(tmp_path / "other").path)
    assert len(read_events(run.path).rows) == 1


# ---------------------------------------------------------------- no torch, no secrets, no undocumented name

READ_EVERYTHING = """
import sys
from base64 import b64encode
from pathlib import Path
from assay.record import *
from assay.record import read_rollouts

path = Path(sys.argv[1])
rows = [*read_metrics(path).rows, *read_timings(path).rows, *read_events(path).rows, *read_rollouts(path)]
RunDirectory.create(path / "dumps" / "other", "", describe_environment(threads=1)).append_event("start")
print(len(rows), "torch" in sys.modules, "transformers" in sys.modules)
"""


def test_a_run_is_read_and_written_without_torch(tmp_path):
    run = new_run(tmp_path / "run", steps=2)
    run.append_event("start")
    assert run_child(READ_EVERYTHING, run.path).split() == ["13", "False", "False"]


def test_no_secret_of_the_environment_enters_a_record(tmp_path, monkeypatch):
    secret = "canary-7d1f0c"
    for name in ("SERVICE_API_KEY", "hub_token", "DB_PASSWORD", "PLAIN_VARIABLE"):
        monkeypatch.setenv(name, secret + name)
    monkeypatch.setenv("SHORT_KEY", "step")
    monkeypatch.setattr(sys, "argv", ["assay", secret])
    run = RunDirectory.create(tmp_path / "run", "[run]\n", describe_environment(threads=1))
    errors = [f"401 for {secret}{name}" for name in ("SERVICE_API_KEY", "hub_token")]
    run.append_step(fake_record(groups=(fake_group(0, [Score.failed(error) for error in errors]),)))
    run.append_event("failed", reason=errors[0], nested={"detail": [errors[1]]})
    run.append_evaluation({"step": 1, "note": f"{secret}DB_PASSWORD"})
    run.append_event("failed", reason=b64encode(f"x {secret}DB_PASSWORD".encode()).decode())
    assert not [name for name, data in contents(run.path, leave_out=()).items() if secret.encode() in data]
    assert read_events(run.path).rows[1]["reason"] == "eC[value of DB_PASSWORD]"
    assert [row["error"] for row in read_rollouts(run.path)] == [
        "401 for [value of SERVICE_API_KEY]",
        "401 for [value of hub_token]",
    ]
    assert read_events(run.path).rows[0]["nested"] == {"detail": ["401 for [value of hub_token]"]}
    assert read_metrics(run.path).rows[0]["step"] == 1  # a short value is no secret and blanks no word


def test_a_config_with_a_secret_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVICE_API_KEY", "canary-7d1f0c")
    with pytest.raises(
        RunError, match="the config holds the value of the environment variable SERVICE_API_KEY"
    ) as caught:
        RunDirectory.create(tmp_path / "run", 'url = "https://x/?key=canary-7d1f0c"', {})
    assert "canary" not in str(caught.value)
    with pytest.raises(RunError, match="the environment variable SERVICE_API_KEY"):
        RunDirectory.create(tmp_path / "run", f'url = "https://x/?key={b64encode(b"canary-7d1f0c").decode()}"', {})
    assert not (tmp_path / "run").exists()


def test_the_environment_names_versions_and_neither_host_nor_user(tmp_path):
    environment = describe_environment(threads=3)
    assert environment["threads"] == 3
    assert environment["packages"]["pyarrow"] == pyarrow.__version__
    assert set(environment) == {"python", "implementation", "system", "machine", "cpus", "threads", "packages"}


def table_rows(heading: str) -> list[list[str]]:
    """The cells of the one table under a heading of the page."""
    section = DOC.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip("`") for cell in row] for row in rows]


def test_the_page_lists_every_metric_timing_and_column_with_its_sentence():
    assert table_rows("metrics.jsonl") == [list(item) for item in (METRICS | COMPONENT_METRICS).items()]
    assert table_rows("timings.jsonl") == [list(item) for item in TIMINGS.items()]
    columns = [[field.name, str(field.type), COLUMNS[field.name]] for field in schema()]
    assert table_rows("rollouts/step-000001.parquet") == columns


def test_the_files_on_disk_hold_the_documented_names_and_no_others(tmp_path):
    run = new_run(tmp_path / "run", steps=1)
    assert pyarrow.parquet.read_schema(run.path / "rollouts" / "step-000001.parquet").names == list(COLUMNS)
    components = {f"reward_{name}_{part}" for name in ("exact", "format") for part in ("mean", "std")}
    assert set(read_metrics(run.path).rows[0]) == set(METRICS) | components
    documented = [re.escape(name).replace("<stage>", ".+") for name in TIMINGS]
    assert all(any(re.fullmatch(name, key) for name in documented) for key in read_timings(run.path).rows[0])


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_jq_lines_of_the_page_work(tmp_path):
    run = new_run(tmp_path / "runs" / "sort", steps=2)
    run.append_event("checkpoint", name="update-000002")
    lines = [line for line in DOC.read_text(encoding="utf-8").splitlines() if line.startswith("jq ")]
    outputs = [subprocess.check_output(line, shell=True, cwd=tmp_path, text=True).splitlines() for line in lines]
    assert outputs[0] == ["[1,1.3333333333333333,0]", "[2,1.3333333333333333,0]"]
    assert [json.loads(line)["name"] for line in outputs[1]] == ["update-000002"]

"""Run directories as desktops, users, full and read-only disks leave them: one sentence, no traceback, nothing lost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fixtures.cases import thorough
from fixtures.commands import Trap, assert_same_bits, contents, rows, settings, without_progress

LONGER = ("--set", "run.steps=3")


@pytest.fixture(scope="module")
def finished(assay_command, run_root):
    """A run of two steps, and the same run of three."""
    place = Path(tempfile.mkdtemp(dir=run_root))
    for steps in (2, 3):
        arguments = settings(run__steps=steps, evaluate__prompts=0)
        ended = assay_command.run("train", *arguments, "--out", place / str(steps))
        assert ended.code == 0, ended.stderr
    return place


@pytest.fixture
def run(finished, run_path):
    shutil.copytree(finished / "2", run_path)
    return run_path


def resume(assay_command, run):
    ended = assay_command.run("train", "--resume", run, *LONGER)
    assert ended.code == 0, ended.stderr
    return ended


def assert_refused(ended, *words):
    assert ended.code == 2, ended.stderr
    assert len(without_progress(ended.stderr)) == 1, ended.stderr
    assert [word for word in words if word not in ended.sentences[0]] == []


# ---------------------------------------------------------------- what is the user's


def test_directories_beside_the_checkpoints_survive_a_resumed_run(assay_command, finished, run):
    for name in ("best", "backup-mine", "zebra"):
        shutil.copytree(max((run / "checkpoints").iterdir()), run / "checkpoints" / name)
    resume(assay_command, run)
    kept = {path.name for path in (run / "checkpoints").iterdir()} - {"best", "backup-mine", "zebra"}
    assert kept == {path.name for path in (finished / "3/checkpoints").iterdir()}
    for name in ("best", "backup-mine", "zebra"):
        assert (run / "checkpoints" / name / "weights.safetensors").exists()
        shutil.rmtree(run / "checkpoints" / name)
    assert_same_bits(run, finished / "3")


HIDDEN = (".DS_Store", "._weights.safetensors", ".nfs00000000123")


def test_hidden_files_everywhere_change_nothing(assay_command, finished, run):
    for place in (run, *(path for path in run.rglob("*") if path.is_dir())):
        for name in HIDDEN:
            (place / name).write_bytes(b"x")
    ended = resume(assay_command, run)
    assert "damaged" not in ended.stderr
    assert not (run / "final-kept").exists()
    for command in ("verify", "eval"):
        options = ("--prompts", "2") if command == "eval" else ()
        assert assay_command.run(command, run, *options).code == 0
    for path in run.rglob(".*"):
        path.unlink()
    assert_same_bits(run, finished / "3")


def test_a_hidden_file_in_an_empty_directory_does_not_keep_a_run_out(assay_command, run_path):
    run_path.mkdir()
    (run_path / ".DS_Store").write_bytes(b"x")
    arguments = settings(run__steps=1, evaluate__prompts=0)
    assert assay_command.run("train", *arguments, "--out", run_path).code == 0
    again = run_path.parent / "again"
    (again / ".git").mkdir(parents=True)
    assert_refused(assay_command.run("train", *arguments, "--out", again), "again is not empty")


@pytest.mark.parametrize(
    "what", ["README.md", "a changed file", "a link", *thorough(".git", "a file", "a link to nowhere")]
)
def test_a_final_that_is_not_the_runs_own_is_kept_under_another_name(assay_command, finished, run, what):
    final, kept = run / "final", run / "final-kept"
    before = (final / "config.json").read_bytes()
    if what == "README.md":
        (final / what).write_text("mine")
    elif what == ".git":
        (final / what).mkdir()
    elif what == "a changed file":
        (final / "config.json").write_bytes(before + b"\n")
    else:
        final.rename(run.parent / "elsewhere")
        if what == "a file":
            final.write_text("mine")
        else:
            final.symlink_to(run.parent / ("elsewhere" if what == "a link" else "nowhere"))
    ended = resume(assay_command, run)
    (said,) = [line for line in ended.stderr.splitlines() if "final-kept" in line]
    assert said.startswith(f"{final} ")
    assert said.endswith(f", so it is kept as {kept}")
    assert os.path.lexists(kept)
    if what in ("README.md", ".git"):
        assert (kept / what).exists()
        assert (kept / "config.json").read_bytes() == before
    assert assay_command.run("verify", run).code == 0
    shutil.rmtree(kept) if kept.is_dir() and not kept.is_symlink() else kept.unlink()
    assert_same_bits(run, finished / "3")


def test_a_final_of_the_runs_own_gives_way_to_the_new_weights(assay_command, finished, run):
    resume(assay_command, run)
    assert_same_bits(run, finished / "3")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_while_it_publishes_final_knows_that_it_is_its_own(assay_command, finished, run_path, when):
    arguments = settings(run__steps=3, evaluate__prompts=0)
    counted = assay_command.run("train", *arguments, "--out", run_path.parent / "counted", count=["os:rename"])
    last = Trap("os:rename", counted.passed["os:rename"], "KILL", when)
    assert assay_command.run("train", *arguments, "--out", run_path, traps=[last]).code == -signal.SIGKILL
    assert (run_path / "final").exists() == (when == "after")
    assert assay_command.run("verify", run_path).code == 0
    assert assay_command.run("train", "--resume", run_path).code == 0
    assert_same_bits(run_path, finished / "3")


# ---------------------------------------------------------------- disks and files of another kind


def test_a_read_only_disk_is_said_in_one_sentence(finished, tmp_path, assay_command):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs none {disk} && cp -r {finished / '2'} {disk}/run && mount -o remount,ro {disk}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urm", "sh", "-c", mount]).returncode:
        pytest.skip("this system does not let an ordinary user mount a file system of his own")
    for arguments, code, words in (
        ("train --resume {} --set run.steps=3", 2, "cannot be written (Read-only file system), and training writes"),
        ("verify {}", 0, "0 problems"),
    ):
        command = f"{mount} && {sys.executable} -m assay {arguments.format(disk / 'run')}"
        ended = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", command], env=assay_command.environment, capture_output=True, text=True
        )
        assert ended.returncode == code, ended.stderr
        (line,) = without_progress(ended.stdout + ended.stderr)
        assert words in line


READ = ("run.json", "config.toml", "metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "events.jsonl")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "pipe") for name in READ),
        *(("config.toml", kind) for kind in ("socket", "device", "directory")),
        *thorough(*((name, kind) for name in (READ[0], *READ[2:]) for kind in ("socket", "device", "directory"))),
    ],
)
def test_nobody_waits_for_a_file_that_is_not_a_regular_one(assay_command, run, name, kind):
    (run / name).unlink()
    with socket.socket(socket.AF_UNIX) as open_socket:
        if kind == "pipe":
            os.mkfifo(run / name)
        elif kind == "socket":
            open_socket.bind(str(run / name))
        elif kind == "device":
            (run / name).symlink_to("/dev/zero")
        else:
            (run / name).mkdir()
        why = "Is a directory" if kind == "directory" else "it is a pipe, a socket or a device"
        assert_refused(assay_command.run("train", "--resume", run, *LONGER), f"{run / name}", why)
        verified = assay_command.run("verify", run)
        assert verified.code == 1
        assert f"{name} cannot be read: {why}" in verified.stdout
        looked = assay_command.run("doctor", run)
        assert "Traceback" not in looked.stderr
        assert name in looked.stdout


def test_pipes_in_the_directories_of_a_run_hold_nobody_up(assay_command, run):
    for name in ("rollouts/step-000001.parquet", "examined/step-000001-update-1.safetensors", "final/tokenizer.json"):
        (run / name).unlink()
        os.mkfifo(run / name)
    looked = assay_command.run("doctor", run)
    assert looked.code == 0, looked.stderr
    text = " ".join(looked.stdout.split())
    assert "rollouts/step-000001.parquet is damaged and cannot be read: it is a pipe" in text
    assert "final/tokenizer.json cannot be read: it is a pipe" in text
    evaluated = assay_command.run("eval", run, "--prompts", "2", "--checkpoint", "final")
    assert_refused(evaluated, "final/tokenizer.json is not a regular file")
    assert assay_command.run("eval", run, "--prompts", "2").code == 0


DEEP = "[" * 100_000


@pytest.mark.parametrize(("name", "head"), [("run.json", ""), ("config.toml", "x = "), ("metrics.jsonl", "")])
def test_text_that_is_nested_too_deeply_is_damage(assay_command, run, name, head):
    text = head + DEEP + "\n"
    (run / name).write_text(text)
    (run / "checksums.jsonl").unlink()  # as if an older version had written the run
    assert_refused(assay_command.run("train", "--resume", run, *LONGER), f"{run / name}", "recursion depth exceeded")
    for command in ("verify", "doctor"):
        ended = assay_command.run(command, run)
        assert "Traceback" not in ended.stderr
        assert name in ended.stdout + ended.stderr


def test_a_link_in_the_place_of_a_record_is_not_written_through(assay_command, run):
    mine = run.parent / "mine.txt"
    (run / "events.jsonl").rename(mine)
    (run / "events.jsonl").symlink_to(mine)
    (run / ".tmp-config.toml").symlink_to(run.parent / "precious")
    (run.parent / "precious").write_text("mine")
    before = mine.read_bytes()
    ended = assay_command.run("train", "--resume", run, *LONGER)
    assert ended.code in (1, 2)
    assert "events.jsonl could not be written: it is a link" in ended.sentences[-1]
    assert mine.read_bytes() == before
    assert (run.parent / "precious").read_text() == "mine"


@pytest.mark.parametrize("command", ["train", "export"])
def test_a_name_that_is_not_utf8_is_refused_before_the_work(run, assay_command, command):
    place = os.fsencode(run.parent) + b"/caf\xe9"
    arguments = ["train", *settings()] if command == "train" else ["export", str(run)]
    ended = subprocess.run(
        [sys.executable, "-m", "assay", *arguments, "--out", place], env=assay_command.environment, capture_output=True
    )
    assert ended.returncode == 2
    (line,) = without_progress(ended.stderr.decode())
    assert "is a name of bytes that are not UTF-8; choose another name" in line
    assert not os.path.lexists(place)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("edit", ["a changed digit", "a removed line"])
def test_a_resumed_run_does_not_go_over_a_damaged_record(assay_command, run, edit):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    mean = rows(run / "metrics.jsonl")[0]["reward_mean"]
    changed = lines[0].replace(f'"reward_mean": {mean}', f'"reward_mean": {mean + 1}')
    assert changed != lines[0]
    (run / "metrics.jsonl").write_text("".join([changed, *lines[1:]] if edit == "a changed digit" else lines[1:]))
    before = contents(run)
    fault = "is not as it was written" if edit == "a changed digit" else "is missing"
    ended = assay_command.run("train", "--resume", run, *LONGER)
    assert_refused(ended, f"metrics.jsonl line 1 {fault}", "restore it", "delete checksums.jsonl to go on")
    assert contents(run) == before
    (run / "checksums.jsonl").unlink()
    resume(assay_command, run)


def test_verify_names_each_problem_and_counts_what_it_read(assay_command, run):
    whole = assay_command.run("verify", run)
    assert whole.code == 0
    assert whole.stdout.startswith(f"{run}: 0 problems; verified ")
    newest = max((run / "checkpoints").iterdir())
    with (newest / "weights.safetensors").open("r+b") as weights:
        weights.truncate(1000)
    (run / "final/model.safetensors").unlink()
    (run / "findings.jsonl").write_text('{"code": "RAT')
    broken = assay_command.run("verify", run)
    assert broken.code == 1
    *problems, closing = broken.stdout.splitlines()
    assert [problem.split()[0] for problem in problems] == [
        "findings.jsonl", "final/model.safetensors", f"checkpoints/{newest.name}",
    ]  # fmt: skip
    assert closing.startswith(f"{run}: 3 problems; ")
    assert assay_command.run("verify", run / "rollouts").code == 2
    looked = " ".join(assay_command.run("doctor", run).stdout.split())
    for words in (
        f"checkpoints/{newest.name} is damaged: weights.safetensors has 1000 of",
        "final/model.safetensors is missing",
        "findings.jsonl line 1 was cut off while it was written",
        f"files were compared by their sizes; assay verify {run} reads every byte",
    ):
        assert words in looked

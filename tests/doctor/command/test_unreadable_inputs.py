"""One input that cannot be read or analysed never keeps the doctor from the others, and it is never a pass."""

import json
import os
import socket
import subprocess

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor import command
from assay.doctor.catalogue import by_code
from assay.doctor.examples import healthy_batch
from assay.doctor.report import FORMATS
from assay.record.batch_file import write_batch

SICK = by_code("RAT04").scripts.sick


def doctor(*words):
    done = CliRunner().invoke(app, ["doctor", *map(str, words)], env={"COLUMNS": "100"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


READABLE = {
    "a long import": "import " + "x" * 300,
    "a long path of an import": "import " + ".".join(["package"] * 600),
    "many dots": "from " + "." * 3000 + " import x",
    "an undefined encoding": "# coding: undefined\nx = 1",
    "an unknown encoding": "# coding: klingon\nx = 1",
    "an encoding that is none": "# coding: hex\nx = 1",
    "an encoding of domains": b"# coding: idna\nx = '\xff'",
    "null bytes": "x = 1\0\0",
    "a byte order mark": "\ufeffx = 1",
    "line ends of old": "x = 1\ry = 2\r",
    "half of a character": b"# coding: utf-7\nx = '+2AA-'",
    "a deep list": "x = " + "[" * 90 + "]" * 90,
}
UNREADABLE = {
    "deep parentheses": "x = " + "(" * 5000 + ")" * 5000,
    "a long sum": "x = " + "+".join(["1"] * 100_000),
    "many signs": "x = " + "-" * 100_000 + "1",
    "not Python": "def f(:",
    "an old print": "print 'x'",
    "a large file": b"#" * 100_000_000,
}


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE)
def test_an_odd_file_is_read(content, tmp_path):
    written(tmp_path / "odd.py", content)
    written(tmp_path / "sick.py", SICK)
    done = doctor(tmp_path)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[2].startswith("fatal    RAT04 inverted")
    assert done.stdout.splitlines()[-1].startswith("2 inputs: 2 read, 1 finding in 1 of them (1 fatal), ")


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_and_counted_and_the_others_are_read(content, tmp_path):
    path = written(tmp_path / "odd.py", content)
    written(tmp_path / "sick.py", SICK)
    done = doctor(tmp_path, "--format", "concise")
    found, unread, last = done.stdout.splitlines()
    assert "fatal RAT04" in found
    assert unread.startswith(f"{path}: could not be read: ")
    assert last.startswith("2 inputs: 1 read, 1 finding in 1 of them (1 fatal), 0 clean, 1 could not be read")
    assert done.exit_code == 2
    assert doctor(tmp_path, "--fail-on", "warning").exit_code == 1


@pytest.mark.parametrize("how", FORMATS)
def test_every_format_names_what_could_not_be_read(how, tmp_path):
    written(tmp_path / "broken.py", "def f(:")
    written(tmp_path / "sick.py", SICK)
    done = doctor(tmp_path, "--format", how)
    assert done.exit_code == 2
    assert "is not valid Python" in done.stdout.replace("%20", " ").replace("\n         ", " ")
    assert "RAT04" in done.stdout


def test_folders_in_folders_are_walked_however_deep(tmp_path):
    written(tmp_path / "sick.py", SICK)
    deepest = tmp_path / "/".join(["d"] * 1200)
    subprocess.run(["mkdir", "-p", deepest], check=True)
    written(deepest / "deep.py", "x = 1\n")
    done = doctor(tmp_path, "--format", "concise")
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # pytest would give up
    assert done.stdout.splitlines()[-1].startswith("2 inputs: 2 read, 1 finding")


def test_pipes_sockets_and_links_that_lead_nowhere_are_named_and_never_waited_for(tmp_path):
    written(tmp_path / "sick.py", SICK)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "folder").symlink_to(tmp_path)
    listening = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(tmp_path)  # the address of a socket is short
    try:
        listening.bind("socket.py")
    finally:
        os.chdir(here)
        listening.close()
    done = doctor(tmp_path, "--format", "json")
    unread = {one["source"].rpartition("/")[2]: one["unread"] for one in reports_of(done) if "unread" in one}
    assert sorted(unread) == ["gone.py", "loop.py", "pipe.py", "socket.py"]
    assert "leads nowhere" in unread["gone.py"]
    assert "leads nowhere" in unread["loop.py"]
    assert "is a pipe or a device" in unread["pipe.py"]
    assert done.exit_code == 2


def reports_of(done):
    return json.loads(done.stdout)["reports"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_listed_is_named(tmp_path):
    written(tmp_path / "sick.py", SICK)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        done = doctor(tmp_path, "--format", "json")
    finally:
        closed.chmod(0o700)
    (unread,) = [one for one in reports_of(done) if "unread" in one]
    assert unread["source"] == str(closed)
    assert "Permission denied" in unread["unread"]
    assert done.exit_code == 2


def test_of_several_paths_one_that_does_not_exist_is_named_and_the_others_are_read(tmp_path):
    sick = written(tmp_path / "sick.py", SICK)
    done = doctor(tmp_path / "nowhere.py", sick)
    assert done.stdout.splitlines()[0].startswith(f"{sick}: the source")
    assert f"{tmp_path}/nowhere.py: could not be read: does not exist" in done.stdout.replace("\n         ", " ")
    assert done.exit_code == 2
    alone = doctor(tmp_path / "nowhere.py")
    assert (alone.exit_code, alone.stdout, alone.stderr.count("\n")) == (2, "", 1)


def crash(path, report):
    raise KeyError("my secret prompt")


@pytest.mark.parametrize("how", FORMATS)
def test_a_fault_of_ours_is_named_with_the_input_and_ends_with_3(how, tmp_path, capsys):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    write_batch(first, healthy_batch())
    write_batch(second, by_code("RAT01").sick().batches[0])
    assert command.run([first], how=how, recompute=crash) == 3
    text = capsys.readouterr().out
    assert "fault of Assay" in text
    assert "KeyError" in text
    assert "first.safetensors" in text
    assert ("secret" in text) is (how in ("full", "concise"))  # machine output quotes nothing


def test_a_fault_of_ours_keeps_nobody_from_the_others(tmp_path, capsys):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    for path in (first, second):
        write_batch(path, healthy_batch())

    def crash_once(path, report):
        return crash(path, report) if path == first else []

    assert command.run([first, second], recompute=crash_once) == 3
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "2 inputs: 1 read, 0 findings, 1 clean, 1 not analysed, by a fault of Assay"

"""What a rehearsed script must not do to the user, whatever it tries."""

import os
import signal
import socket
import subprocess
import time

import pytest

from assay.rehearsal import checkpoint, command, sandbox
from assay.rehearsal.copy import copy_project, project_of
from assay.rehearsal.problems import USUAL
from tests.rehearsal.test_rehearse import rehearse, what_hindered

TRIES = """
    import os, socket, subprocess, sys

    done = []

    def attempt(name, call):
        try:
            call()
            done.append(name)
        except (OSError, subprocess.CalledProcessError):
            pass

    attempt("chmod", lambda: os.chmod({victim!r}, 0))
    attempt("utime", lambda: os.utime({victim!r}, (1, 1)))
    attempt("kill", lambda: os.kill({process}, 9))
    attempt("kill by a program", lambda: subprocess.run(["kill", "-9", "{process}"], check=True))
    attempt("shared memory", lambda: os.remove({shared!r}))
    attempt("socket", lambda: socket.socket(socket.AF_UNIX).connect({socket!r}))
    subprocess.Popen(["sleep", "{sleep}"], env={{}}, start_new_session=True)
    sys.exit(f"done: {{done}}")
"""


def has_namespaces() -> bool:
    return subprocess.run(["unshare", "-Urmpnf", "--mount-proc", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="the kernel gives no namespaces to this user")
def test_modes_processes_sockets_and_shared_memory_of_the_user_are_out_of_reach(tmp_path):
    victim, shared = tmp_path / "victim.txt", f"/dev/shm/assay-test-{os.getpid()}"
    victim.write_text("mine")
    with open(shared, "w") as file:
        file.write("mine")
    seconds = 500 + os.getpid() / 1e7
    with socket.socket(socket.AF_UNIX) as listening, subprocess.Popen(["sleep", "300"]) as other:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        names = {"victim": str(victim), "shared": shared, "socket": str(tmp_path / "s")}
        report = rehearse(tmp_path, TRIES.format(process=other.pid, sleep=seconds, **names))
        is_alive = other.poll() is None
        other.kill()
    assert what_hindered(report) == ["the script ended itself with 'done: []'"]
    assert is_alive
    assert os.stat(victim).st_mode & 0o777
    os.remove(shared)
    assert subprocess.run(["pgrep", "-f", f"^sleep {seconds}"], capture_output=True).stdout == b""
    assert "the rest of the file system read-only" in report["rehearsal"]["walls"]


def test_a_run_that_never_reached_an_update_says_so(tmp_path):
    report = rehearse(tmp_path, "import sys\n\nif __name__ == '__main__':\n    sys.exit(0)\n")
    assert report["notes"][0].startswith("the rehearsal never reached an optimizer step")


def test_walls_are_known_of_a_process_that_was_killed(tmp_path):
    report = rehearse(tmp_path, "import os\n\nfor _ in range(1):\n    os.kill(os.getpid(), 9)\n    os.abort()\n")
    assert report["rehearsal"]["ended"] == "killed"
    assert report["rehearsal"]["walls"]


def test_a_script_in_a_home_does_not_take_the_home_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "elsewhere"))
    home = tmp_path / "home"
    for place in ("helpers/words.py", "photos/one.py", ".ssh/key"):
        (home / place).parent.mkdir(parents=True)
        (home / place).write_text("")
    (home / "beside.py").write_text("")
    script = home / "train.py"
    script.write_text("from helpers.words import word\n")
    assert project_of(script) == home
    copy_project(home, tmp_path / "copy", script, script)
    found = sorted(str(file.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("*"))
    assert found == ["beside.py", "helpers", "helpers/words.py", "train.py"]


def test_files_that_cannot_be_read_and_links_in_circles_do_not_stop_a_copy(tmp_path):
    project = tmp_path / "pr\u00f6ject with spaces"
    project.mkdir()
    script = project / "my tr\u00e2in.py"
    script.write_text("x = 1\n")
    (project / "locked.md").write_text("secret")
    (project / "locked.md").chmod(0)
    (project / "circle").symlink_to(project / "circle")
    (project / "up").symlink_to(tmp_path)
    (project / "gone").symlink_to(tmp_path / "gone")
    os.mkfifo(project / "pipe")
    (project / "outputs").mkdir()
    copy_project(project, tmp_path / "copy", script, script)
    found = {str(file.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("*")}
    assert found - {"locked.md"} == {"my tr\u00e2in.py", "outputs"}


def test_a_cache_that_cannot_be_written_is_replaced_for_one_rehearsal(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(checkpoint, "cache_folder", lambda: tmp_path / "file")
    monkeypatch.setattr(checkpoint, "_make_in_own_process", lambda name, formats, folder: folder.mkdir())
    with checkpoint.Maker(tmp_path / "home"):
        made = checkpoint.get("Qwen/Qwen2.5-0.5B", USUAL, tmp_path / "home")
    assert made.is_dir()
    assert made.is_relative_to(tmp_path / "home")


def test_the_cache_keeps_what_was_used_last_and_nothing_half_made(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MOST_KEPT", 2)
    old = time.time() - 7200
    for number, name in enumerate(("oldest", "older", "old", "tmp123")):
        (tmp_path / "family" / name).mkdir(parents=True)
        os.utime(tmp_path / "family" / name, (old + number, old + number))
    (tmp_path / "family" / "tmpnew").mkdir()
    checkpoint._remove_oldest(tmp_path)
    assert {folder.name for folder in (tmp_path / "family").iterdir()} == {"older", "old", "tmpnew"}


def test_a_maker_that_is_closed_ends_what_it_makes(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(checkpoint, "python_command", lambda *words: ["sleep", "300"])
    began = time.monotonic()
    with checkpoint.Maker(tmp_path / "home"):
        checkpoint.ask_for("Qwen/Qwen2.5-0.5B", USUAL, tmp_path / "home")
        while not checkpoint._making:
            time.sleep(0.02)
    assert time.monotonic() - began < 60
    assert list((tmp_path / "cache").glob("*/*")) == []


def test_other_platforms_have_fewer_walls_and_say_so(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert sandbox.own_namespaces("/tmp") == []
    assert not sandbox.write_only_below(["/tmp"])
    assert signal.SIGUSR2


def test_folders_of_killed_rehearsals_are_removed_on_another_day(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for name in ("assay-rehearsal-old", "assay-rehearsal-new", "another"):
        (tmp_path / name / "work").mkdir(parents=True)
        if name != "assay-rehearsal-new":
            os.utime(tmp_path / name, (1, 1))
    command._remove_abandoned()
    assert {folder.name for folder in tmp_path.iterdir()} == {"assay-rehearsal-new", "another"}

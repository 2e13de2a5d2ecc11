"""Checkpoints after a kill between any two system calls, after a kill inside a write, and on a full disk."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fixtures.child_process import run, run_child
from train.run.numbered_checkpoints import assert_whole, names, never_reported, save_number

from assay.train.run.checkpoint import CheckpointError, load_latest, remove_leftovers, save

KILL_AT_EVERY_BOUNDARY = """
import sys
from pathlib import Path
from assay.train.run.checkpoint import save
from fixtures.child_process import kill_at_every_boundary
from train.run.numbered_checkpoints import tensors_of

for root in map(Path, sys.argv[2:]):
    number = int(root.name)
    tensors = tensors_of(number)
    kill_at_every_boundary(
        Path(sys.argv[1]), root, lambda root: save(root, f"update-{number:06d}", tensors, {"update": number}, keep=2)
    )
"""


def assert_all_are_whole(root: Path, copy: Path) -> None:
    """Takes the newest away until none is left: every name that looks like a checkpoint must load unreported."""
    shutil.copytree(root, copy)
    while [name for name in names(copy) if not name.startswith(".")]:
        shutil.rmtree(load_latest(copy, never_reported).path)
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def killed_at_every_boundary(tmp_path_factory):
    """A folder for each number that was being saved. One child makes both: most of its time is spent on imports."""
    base, kills = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("kills")
    save_number(base, 1)
    save(base, "update-000002", {"model": {"weight": torch.zeros(5)}}, {"update": "old 2"}, keep=2)
    roots = [kills / "3", kills / "2"]
    for root in roots:
        root.mkdir()
    run_child(KILL_AT_EVERY_BOUNDARY, base, *roots)
    return kills


@pytest.mark.parametrize("number", [3, 2])
def test_a_kill_between_any_two_system_calls_leaves_a_whole_checkpoint(killed_at_every_boundary, tmp_path, number):
    """Number 3 is new and prunes 1; number 2 exists and is replaced."""
    seen = []
    for place in sorted((killed_at_every_boundary / str(number)).iterdir()):
        loaded = load_latest(place, never_reported)
        if loaded.state == {"update": "old 2"}:
            assert loaded.tensors["model"]["weight"].tolist() == [0.0] * 5
            assert list(loaded.tensors) == ["model"]
        else:
            assert_whole(loaded, number)
        seen.append(loaded.state["update"])
        assert_all_are_whole(place, tmp_path / "copy")
        remove_leftovers(place)
        assert load_latest(place, never_reported).state == loaded.state
        assert not [name for name in names(place) if name.startswith(".")]
        save_number(place, number)
        assert_whole(load_latest(place, never_reported), number)
        assert len(names(place)) == 2
    # every boundary before the rename leaves the old one, every one after it the new one
    assert seen == sorted(seen, key=lambda update: update == number)
    assert seen.count("old 2") > 15
    assert seen.count(number) > 5


KILL_INSIDE_WRITES = """
import os, resource, shutil, signal, sys
from pathlib import Path
from assay.train.run.checkpoint import save
from train.run.numbered_checkpoints import tensors_of

base, root = Path(sys.argv[1]), Path(sys.argv[2])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for limit in range(0, 2000, 61):
    target = root / f"{limit:04d}"
    shutil.copytree(base, target)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the write that passes the limit kills the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        save(target, "update-000002", tensors_of(2), {"update": 2}, keep=2)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(int(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ))
"""


def test_a_kill_inside_a_write_leaves_a_whole_checkpoint(tmp_path):
    base, root = tmp_path / "base", tmp_path / "kills"
    root.mkdir()
    save_number(base, 1)
    largest = max(file.stat().st_size for file in (base / "update-000001").iterdir())
    killed = [line == "1" for line in run_child(KILL_INSIDE_WRITES, base, root).split()]
    places = sorted(root.iterdir())
    for place, was_killed in zip(places, killed, strict=True):
        assert was_killed == (int(place.name) < largest)
        assert_whole(load_latest(place, never_reported), 1 if was_killed else 2)
    assert killed.count(True) > 20
    assert killed.count(False) > 3


# ---------------------------------------------------------------- full disks

SAVE_AND_PRINT_THE_ERROR = """
import os, resource, sys
from pathlib import Path
from assay.train.run.checkpoint import CheckpointError, save
from train.run.numbered_checkpoints import tensors_of

root, limit, *paddings = sys.argv[1:]
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
for padding in map(int, paddings):
    try:
        save(Path(root), "update-000060", tensors_of(60), {"update": 60, "padding": "x" * padding}, keep=2)
        print("written")
    except CheckpointError as error:
        print(error)
    print(*sorted(os.listdir(root)))
"""


@pytest.mark.parametrize(("limit", "padding"), [(100, 0), (1450, 2000)], ids=["inside the tensors", "inside the state"])
def test_a_write_that_fails_keeps_the_old_checkpoints_and_leaves_nothing_behind(tmp_path, limit, padding):
    save_number(tmp_path, 20)
    save_number(tmp_path, 40)
    message, _ = run_child(SAVE_AND_PRINT_THE_ERROR, tmp_path, limit, padding).splitlines()
    assert message.startswith("checkpoint update-000060 was not written: ")
    assert "File too large" in message
    assert "update-000040 is still there" in message
    assert names(tmp_path) == ["update-000020", "update-000040"]
    assert_whole(load_latest(tmp_path, never_reported), 40)


def test_a_full_disk_keeps_the_old_checkpoint_and_leaves_nothing_behind(tmp_path):
    """On a real file system of 40 KiB, mounted for the child alone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    save_number(tmp_path / "base", 40)
    mount = f"mount -t tmpfs -o size=40k none {disk}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urm", "sh", "-c", mount]).returncode:
        pytest.skip("this system does not let an ordinary user mount a file system of his own")
    script = tmp_path / "child.py"
    script.write_text(SAVE_AND_PRINT_THE_ERROR)
    steps = f"{mount} && cp -r {tmp_path}/base/. {disk} && {sys.executable} {script} {disk} 0 30000 0"
    failed, left, written, after = run(["unshare", "-Urm", "sh", "-c", steps]).splitlines()
    assert failed.startswith("checkpoint update-000060 was not written: No space left on device; free some disk space")
    assert failed.endswith("update-000040 is still there")
    assert left == "update-000040"
    assert written == "written"
    assert after == "update-000040 update-000060"


def test_a_root_that_cannot_be_made_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        save_number(tmp_path / "file" / "checkpoints", 1)
    assert str(caught.value) == "checkpoint update-000001 was not written: Not a directory; there is no older one"

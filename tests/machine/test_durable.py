"""What a power cut would show: contents are synced before the rename that publishes them, names after it."""

import errno
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from assay.machine import durable
from assay.train.run import checkpoint

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/fd")

TENSORS = {"model": {"w": torch.arange(6.0)}, "optimizer": {"m": torch.ones(2, 3)}}
NAMES = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}


@dataclass(frozen=True)
class Event:
    """A sync of `path` (with what it held then: bytes, or the names in a directory), or a rename from it to `to`."""

    what: str
    path: Path
    held: bytes | frozenset[str] | None = None
    to: Path | None = None


@pytest.fixture
def events(monkeypatch):
    seen: list[Event] = []
    fsync = os.fsync

    def recording_fsync(descriptor):
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        fsync(descriptor)
        seen.append(Event("sync", path, frozenset(os.listdir(path)) if path.is_dir() else path.read_bytes()))

    def recording(rename):
        def renamed(source, target, **rest):
            rename(source, target, **rest)
            seen.append(Event("rename", Path(source), to=Path(target)))

        return renamed

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "rename", recording(os.rename))
    monkeypatch.setattr(os, "replace", recording(os.replace))
    return seen


@pytest.fixture
def folder(tmp_path):
    return tmp_path.resolve()  # as /proc spells it


def publication(events, target):
    """The place of the one rename that gives `target` its name."""
    (place,) = [index for index, event in enumerate(events) if event.what == "rename" and event.to == target]
    return place


def synced(events):
    return {event.path: event.held for event in events if event.what == "sync"}


@pytest.mark.parametrize("old", [None, b"old\n"])
def test_a_replaced_file_is_synced_whole_then_renamed_then_its_directory_is_synced(folder, events, old):
    path = folder / "file"
    if old is not None:
        path.write_bytes(old)
    data = b"new\n" * 1000
    durable.replace_file(path, data)
    assert path.read_bytes() == data
    place = publication(events, path)
    assert synced(events[:place])[events[place].path] == data
    assert synced(events[place + 1 :])[folder] == {"file"}


@pytest.mark.parametrize("old", [b"", b"one\n", b"one\ntorn"])
def test_an_appended_line_is_synced_once_it_is_whole(folder, events, old):
    path = folder / "lines"
    path.write_bytes(old)
    durable.append_line(path, b"two\n")
    whole = old.replace(b"torn", b"") + b"two\n"
    assert path.read_bytes() == whole
    assert events[-1] == Event("sync", path, whole)


def test_every_appended_line_is_synced_by_itself(folder, events):
    path = folder / "lines"
    path.write_bytes(b"")
    for line in (b"one\n", b"two\n", b"three\n"):
        durable.append_line(path, line)
    held = [event.held for event in events if event.path == path]
    assert list(dict.fromkeys(held)) == [b"one\n", b"one\ntwo\n", b"one\ntwo\nthree\n"]


def assert_published_durably(events, target):
    """All files and their directory before the rename, the directory above it afterwards."""
    place = publication(events, target)
    aside = events[place].path
    assert aside.name.startswith(durable.ASIDE)
    before = synced(events[:place])
    for name in NAMES:
        assert before[aside / name] == (target / name).read_bytes(), name
    assert before[aside] == NAMES  # its names, when the last of them was there
    after = [event for event in events[place + 1 :] if event.what == "sync" and event.path == target.parent]
    assert after
    assert all(target.name in event.held for event in after)
    return place, events.index(after[0])


def test_a_checkpoint_is_synced_whole_then_renamed_then_its_directory_is_synced(folder, events):
    path = checkpoint.save(folder / "checkpoints", "update-1", TENSORS, {"step": 1}, keep=2)
    assert {file.name for file in path.iterdir()} == NAMES
    assert_published_durably(events, path)


@pytest.mark.parametrize("second", ["update-1", "update-2"])
def test_an_old_checkpoint_is_given_up_only_when_the_new_ones_name_is_on_disk(folder, events, second):
    root = folder / "checkpoints"
    first = checkpoint.save(root, "update-1", TENSORS, {"step": 1}, keep=1)
    old = first.stat().st_ino
    events.clear()
    path = checkpoint.save(root, second, TENSORS, {"step": 2}, keep=1)
    place, on_disk = assert_published_durably(events, path)
    assert [entry.name for entry in root.iterdir()] == [second]
    assert path.stat().st_ino != old
    given_up = [
        index
        for index, event in enumerate(events)
        if event.what == "rename" and event.path.parent == root and event.to.name.startswith(durable.ASIDE)
    ]
    assert given_up
    assert place < on_disk < min(given_up)


class FailingSync:
    """The nth sync fails, as on a disk that has gone bad; the others go through."""

    def __init__(self, number):
        self.left = number
        self.fsync = os.fsync

    def __call__(self, descriptor):
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.fsync(descriptor)


def test_a_sync_that_fails_is_an_error_and_leaves_the_old_file(folder, monkeypatch):
    path = folder / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", FailingSync(1))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        durable.replace_file(path, b"new")
    assert [entry.name for entry in folder.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])  # four files and the directory that holds them
def test_a_sync_that_fails_is_an_error_and_leaves_the_old_checkpoint(folder, monkeypatch, number):
    checkpoint.save(folder, "update-1", TENSORS, {"step": 1}, keep=1)
    monkeypatch.setattr(os, "fsync", FailingSync(number))
    with pytest.raises(checkpoint.CheckpointError, match=r"update-2 was not written: .*; update-1 is still there"):
        checkpoint.save(folder, "update-2", TENSORS, {"step": 2}, keep=1)
    assert [entry.name for entry in folder.iterdir()] == ["update-1"]
    assert checkpoint.load_latest(folder, report=pytest.fail).state == {"step": 1}


def test_what_may_not_be_read_is_not_told_to_be_written_elsewhere():
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert durable.reason(refused) == "Permission denied; choose a directory you may write to"
    assert durable.reason_unread(refused) == "Permission denied; make it readable for this user"
    assert durable.reason_unread(OSError(errno.EIO, "Input/output error")) == "Input/output error"


def test_a_leftover_that_is_a_link_or_a_pipe_is_never_written_through(folder):
    path, mine = folder / "file", folder / "mine"
    mine.write_text("mine")
    (folder / ".tmp-file").symlink_to(mine)
    durable.replace_file(path, b"new")
    os.mkfifo(folder / ".tmp-file")
    durable.replace_file(path, b"newer")
    assert (path.read_bytes(), mine.read_text()) == (b"newer", "mine")
    assert sorted(os.listdir(folder)) == ["file", "mine"]


def test_a_line_is_not_appended_through_a_link_or_to_a_pipe(folder):
    mine = folder / "mine"
    mine.write_text("mine\n")
    (folder / "link").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic links") as caught:
        durable.append_line(folder / "link", b"x\n")
    assert durable.reason(caught.value).startswith("it is a link")
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="it is a pipe, a socket or a device"):
        durable.append_line(folder / "pipe", b"x\n")
    assert mine.read_text() == "mine\n"


def test_only_leftovers_of_our_own_names_are_removed(folder):
    ours = [f".tmp-{'0a' * 16}", f".tmp-trash-{'1b' * 16}", ".tmp-step-000001.parquet"]
    users = [".tmp-notes", ".tmp-step-1.parquet", ".tmp-", ".DS_Store", "step-000001.parquet"]
    for name in (*ours, *users):
        (folder / name).write_text("x")
    durable.remove_asides(folder, rf"{durable.ASIDE_DIRECTORY}|step-[0-9]{{6,}}\.parquet")
    assert sorted(os.listdir(folder)) == sorted(users)

"""A checkpoint is whole or absent, a damaged one is refused by name, and what comes back is what went in."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from assay.train import checkpoint
from assay.train.checkpoint import CheckpointError, load_latest, remove_leftovers, save

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")


def tensors_of(number: int) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "model": {"weight": torch.full((300,), float(number)), "bias": torch.full((7,), -float(number))},
        "optimizer": {"moment": torch.full((150,), float(number), dtype=torch.bfloat16)},
    }


def save_number(root: Path, number: int, keep: int = 2) -> Path:
    return save(root, f"update-{number:06d}", tensors_of(number), {"update": number}, keep)


def assert_whole(loaded: checkpoint.Checkpoint, number: int) -> None:
    assert loaded.state == {"update": number}
    wanted = tensors_of(number)
    assert {key: set(group) for key, group in loaded.tensors.items()} == {key: set(wanted[key]) for key in wanted}
    assert all(torch.equal(loaded.tensors[key][name], wanted[key][name]) for key in wanted for name in wanted[key])


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def never_reported(sentence: str) -> None:
    raise AssertionError(f"an undamaged checkpoint was reported: {sentence}")


def run(command: list[str]) -> str:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # children import tensors_of from this file
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=paths)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_child(script: str, *arguments: object) -> str:
    return run([sys.executable, "-c", script, *map(str, arguments)])


# ---------------------------------------------------------------- what went in comes out


def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path):
    kinds = {
        "float32": torch.tensor([0.1, -0.0, float("inf"), float("nan"), 1e-45]),
        "bfloat16": torch.arange(-3, 3).to(torch.bfloat16) / 7,
        "int64": torch.tensor([2**63 - 1, -(2**63)]),
        "uint8": torch.arange(256, dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "also_empty": torch.empty(0, 4),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    save(tmp_path, "update-000001", {"model": kinds, "nothing": {}}, {}, keep=1)
    loaded = load_latest(tmp_path, never_reported).tensors
    assert loaded["nothing"] == {}
    assert set(loaded["model"]) == set(kinds)
    for name, tensor in kinds.items():
        back = loaded["model"][name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape), name
        raw = [t.detach().contiguous().reshape(-1).view(torch.uint8).tolist() for t in (back, tensor)]
        assert raw[0] == raw[1], name


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path):
    embedding = torch.randn(64, 32)
    group = {"embedding": embedding, "head": embedding, "own": torch.randn(3)}
    path = save(tmp_path, "update-000001", {"model": group}, {}, keep=1)
    assert (path / "model.safetensors").stat().st_size < 2 * embedding.numel() * 4
    loaded = load_latest(tmp_path, never_reported).tensors["model"]
    assert torch.equal(loaded["embedding"], embedding)
    assert loaded["head"].data_ptr() == loaded["embedding"].data_ptr()
    assert torch.equal(loaded["own"], group["own"])


def test_different_views_of_one_storage_come_back_with_their_own_numbers(tmp_path):
    whole = torch.arange(6.0)
    views = {"whole": whole, "head": whole[:2], "tail": whole[4:], "square": whole.reshape(2, 3)}
    save(tmp_path, "update-000001", {"model": views}, {}, keep=1)
    loaded = load_latest(tmp_path, never_reported).tensors["model"]
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == {
        "whole": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "head": [0.0, 1.0],
        "tail": [4.0, 5.0],
        "square": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
    }


def test_state_comes_back_exactly(tmp_path):
    state = {
        "floats": [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0],
        "big": 2**640 + 1,
        "text": "\ud800 \x00 \u2028 \U0001f600",
        "nested": {"cursor": 7, "done": False, "nothing": None, "": []},
    }
    save(tmp_path, "update-000001", {}, state, keep=1)
    loaded = load_latest(tmp_path, never_reported).state
    assert loaded == state
    assert [value.hex() for value in loaded["floats"]] == [value.hex() for value in state["floats"]]


@pytest.mark.parametrize(
    ("state", "culprit"),
    [
        ({"optimizer": {"rates": [1.0, float("nan")]}}, "state.optimizer.rates[1] is nan"),
        ({"loss": float("-inf")}, "state.loss is -inf"),
        ({"seen": {3: "x"}}, "state.seen has the key 3"),
        ({"random": [(1, 2)]}, "state.random[0] is a tuple"),
        ({"weights": torch.ones(1)}, "state.weights is a Tensor"),
    ],
)
def test_state_that_json_would_change_is_refused_by_name_and_nothing_is_written(tmp_path, state, culprit):
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path, "update-000001", {}, state, keep=1)
    assert str(caught.value).startswith(culprit)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["", "../update", "a/b", ".hidden", "update-1.replaced"])
def test_names_that_are_no_plain_file_name_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is no file name"):
        save(tmp_path, name, {}, {}, keep=1)
    with pytest.raises(ValueError, match="is no file name"):
        save(tmp_path, "update-000001", {name: {}}, {}, keep=1)


# ---------------------------------------------------------------- which are kept


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (2, [4, 5]), (4, [2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_newest_are_kept(tmp_path, keep, left):
    for number in range(1, 6):
        save_number(tmp_path, number, keep)
    assert names(tmp_path) == [f"update-{number:06d}" for number in left]
    assert_whole(load_latest(tmp_path, never_reported), 5)


def test_saving_a_name_again_replaces_it(tmp_path):
    save_number(tmp_path, 1)
    save(tmp_path, "update-000002", {"model": {"weight": torch.zeros(9)}, "old": {}}, {"update": -1}, keep=2)
    save_number(tmp_path, 2)
    assert names(tmp_path) == ["update-000001", "update-000002"]
    assert_whole(load_latest(tmp_path, never_reported), 2)


def test_a_damaged_newer_checkpoint_never_costs_the_one_just_written(tmp_path):
    save_number(tmp_path, 1, keep=1)
    save_number(tmp_path, 9, keep=2)
    (tmp_path / "update-000009" / "state.json").unlink()
    save_number(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["update-000003", "update-000009"]
    assert_whole(load_latest(tmp_path, [].append), 3)


# ---------------------------------------------------------------- damage


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
        return
    if how == "emptied":
        data.clear()
    elif how == "truncated":
        del data[-1]
    elif how == "extended":
        data += b"\0"
    else:
        data[{"head": 0, "middle": len(data) // 2, "tail": len(data) - 1}[how]] ^= 0x01
    file.write_bytes(data)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", ["deleted", "emptied", "truncated", "extended", "head", "middle", "tail"])
def test_a_damaged_file_is_named_and_the_previous_checkpoint_is_used(tmp_path, file, how):
    save_number(tmp_path, 20)
    path = save_number(tmp_path, 40)
    size = (path / file).stat().st_size
    damage(path / file, how)
    reports: list[str] = []
    assert_whole(load_latest(tmp_path, reports.append), 20)
    [sentence] = reports
    assert sentence.startswith("checkpoint update-000040 is damaged: ")
    assert sentence.endswith("; using update-000020 instead")
    if how == "deleted":
        assert f"{file} is missing" in sentence
    elif file != "manifest.json":
        fault = {"emptied": f"has 0 of {size} bytes", "truncated": f"has {size - 1} of {size} bytes"}
        fault["extended"] = f"has {size + 1} of {size} bytes"
        assert f"{file} {fault.get(how, 'does not match its checksum')}" in sentence
    elif how != "middle":  # there, a flip may look like damage of the file that the manifest describes
        assert "manifest.json is not" in sentence


def test_a_flip_of_any_byte_of_any_file_is_noticed(tmp_path):
    save(tmp_path, "update-000001", {"model": {"weight": torch.arange(20.0)}}, {"update": 1}, keep=1)
    for file in (tmp_path / "update-000001").iterdir():
        whole = file.read_bytes()
        for index in range(len(whole)):
            file.write_bytes(whole[:index] + bytes([whole[index] ^ 0x01]) + whole[index + 1 :])
            with pytest.raises(CheckpointError, match="update-000001 is damaged"):
                load_latest(tmp_path, never_reported)
        file.write_bytes(whole)
    assert load_latest(tmp_path, never_reported).state == {"update": 1}


def test_an_extra_file_is_refused_by_name(tmp_path):
    save_number(tmp_path, 20)
    (save_number(tmp_path, 40) / "stranger.safetensors").write_bytes(b"")
    reports: list[str] = []
    assert_whole(load_latest(tmp_path, reports.append), 20)
    assert reports == [
        "checkpoint update-000040 is damaged: stranger.safetensors is not in its manifest; using update-000020 instead"
    ]


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        ({"format_version": 2}, "manifest.json has format version 2, this Assay reads 1"),
        ({"name": "update-000020"}, "manifest.json belongs to checkpoint 'update-000020'"),
        ({"files": []}, "manifest.json lists no files"),
        ({"files": {"../x": {"bytes": 0, "sha256": ""}}}, "manifest.json has a malformed entry '../x'"),
        ({"files": {}}, "model.safetensors is not in its manifest"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path, edit, fault):
    save_number(tmp_path, 20)
    manifest = save_number(tmp_path, 40) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | edit))
    reports: list[str] = []
    assert_whole(load_latest(tmp_path, reports.append), 20)
    assert reports == [f"checkpoint update-000040 is damaged: {fault}; using update-000020 instead"]


def test_two_damaged_checkpoints_are_both_reported(tmp_path):
    for number in (20, 40, 60):
        save_number(tmp_path, number, keep=3)
    damage(tmp_path / "update-000060" / "model.safetensors", "truncated")
    damage(tmp_path / "update-000040" / "state.json", "deleted")
    reports: list[str] = []
    assert_whole(load_latest(tmp_path, reports.append), 20)
    assert [sentence.split(":")[0] for sentence in reports] == [
        "checkpoint update-000060 is damaged",
        "checkpoint update-000040 is damaged",
    ]


def test_when_none_is_whole_every_problem_is_named(tmp_path):
    save_number(tmp_path, 20)
    save_number(tmp_path, 40)
    damage(tmp_path / "update-000020" / "state.json", "deleted")
    damage(tmp_path / "update-000040" / "optimizer.safetensors", "tail")
    with pytest.raises(CheckpointError) as caught:
        load_latest(tmp_path, never_reported)
    assert "update-000020 is damaged: state.json is missing" in str(caught.value)
    assert "update-000040 is damaged: optimizer.safetensors does not match its checksum" in str(caught.value)


@pytest.mark.parametrize("place", ["", "missing", "file/below"])
def test_a_place_without_checkpoints_says_so(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_latest(tmp_path / place, never_reported)


# ---------------------------------------------------------------- kills

KILL_AT_EVERY_BOUNDARY = """
import os, shutil, signal, sys
from pathlib import Path
from assay.train.checkpoint import save
from test_checkpoint import tensors_of

base, root, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}

def save_until(boundary, target):
    reached = 0

    def reach():
        nonlocal reached
        if reached == boundary:
            os.kill(os.getpid(), signal.SIGKILL)
        reached += 1

    real_fsync, real_write = os.fsync, os.write

    def fsync(descriptor):
        reach()
        real_fsync(descriptor)

    def write(descriptor, data):
        reach()
        done = real_write(descriptor, data[: len(data) // 2])
        reach()
        return done + real_write(descriptor, data[done:])

    os.fsync, os.write = fsync, write
    sys.addaudithook(lambda event, arguments: reach() if event in CALLS else None)
    save(target, f"update-{number:06d}", tensors_of(number), {"update": number}, keep=2)

boundary, killed = 0, True
while killed:
    target = root / f"{boundary:03d}"
    shutil.copytree(base, target)
    child = os.fork()
    if child == 0:
        save_until(boundary, target)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, status
    boundary += 1
"""


@pytest.mark.parametrize("number", [3, 2])
def test_a_kill_between_any_two_system_calls_leaves_a_whole_checkpoint(tmp_path, number):
    """Number 3 is new and prunes 1; number 2 exists and is replaced."""
    base, root = tmp_path / "base", tmp_path / "kills"
    root.mkdir()
    save_number(base, 1)
    save(base, "update-000002", {"model": {"weight": torch.zeros(5)}}, {"update": "old 2"}, keep=2)
    run_child(KILL_AT_EVERY_BOUNDARY, base, root, number)
    seen = []
    for place in sorted(root.iterdir()):
        loaded = load_latest(place, never_reported)
        if loaded.state == {"update": "old 2"}:
            assert loaded.tensors["model"]["weight"].tolist() == [0.0] * 5
            assert list(loaded.tensors) == ["model"]
        else:
            assert_whole(loaded, number)
        seen.append(loaded.state["update"])
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
from assay.train.checkpoint import save
from test_checkpoint import tensors_of

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
import resource, sys
from pathlib import Path
from assay.train.checkpoint import CheckpointError, save
from test_checkpoint import tensors_of

limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    save(Path(sys.argv[1]), "update-000060", tensors_of(60), {"update": 60, "padding": "x" * int(sys.argv[3])}, keep=2)
    print("written")
except CheckpointError as error:
    print(error)
"""


@pytest.mark.parametrize(("limit", "padding"), [(100, 0), (1450, 2000)], ids=["inside the tensors", "inside the state"])
def test_a_write_that_fails_keeps_the_old_checkpoints_and_leaves_nothing_behind(tmp_path, limit, padding):
    save_number(tmp_path, 20)
    save_number(tmp_path, 40)
    message = run_child(SAVE_AND_PRINT_THE_ERROR, tmp_path, limit, padding)
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
    steps = f"""{mount} && cp -r {tmp_path}/base/. {disk} && {sys.executable} {script} {disk} 0 30000 &&
        ls -A {disk} && {sys.executable} {script} {disk} 0 0 && ls -A {disk}"""
    failed, left, written, *after = run(["unshare", "-Urm", "sh", "-c", steps]).splitlines()
    assert failed.startswith("checkpoint update-000060 was not written: No space left on device; free some disk space")
    assert failed.endswith("update-000040 is still there")
    assert left == "update-000040"
    assert written == "written"
    assert after == ["update-000040", "update-000060"]


def test_a_root_that_cannot_be_made_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        save_number(tmp_path / "file" / "checkpoints", 1)
    assert str(caught.value) == "checkpoint update-000001 was not written: Not a directory; there is no older one"


def test_leftovers_are_removed_and_checkpoints_are_not(tmp_path):
    save_number(tmp_path, 1)
    (tmp_path / ".tmp-0123").mkdir()
    (tmp_path / ".tmp-0123" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-trash-4567").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["update-000001"]
    assert_whole(load_latest(tmp_path, never_reported), 1)

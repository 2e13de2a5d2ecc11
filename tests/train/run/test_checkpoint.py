"""A checkpoint is whole or absent, a damaged one is refused by name, and what comes back is what went in."""

import json
import os
import socket
from pathlib import Path

import pytest
import torch
from train.run.numbered_checkpoints import assert_whole, names, never_reported, save_number

from assay.record.manifest import write_manifest
from assay.train.run.checkpoint import CheckpointError, load_latest, remove_leftovers, save

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")

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
def test_names_that_are_not_plain_file_names_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is not the name of a checkpoint"):
        save(tmp_path, name, {}, {}, keep=1)
    with pytest.raises(ValueError, match="is not a file name"):
        save(tmp_path, "update-000001", {name: {}}, {}, keep=1)
    with pytest.raises(ValueError, match="is not the name of a checkpoint"):
        save(tmp_path, "best", {}, {}, keep=1)


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


def test_leftovers_are_removed_and_checkpoints_are_not(tmp_path):
    save_number(tmp_path, 1)
    ours, trash = f".tmp-{'0123abcd' * 4}", f".tmp-trash-{'4567' * 8}"
    (tmp_path / ours).mkdir()
    (tmp_path / ours / "model.safetensors").write_bytes(b"half")
    (tmp_path / trash).mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["update-000001"]
    assert_whole(load_latest(tmp_path, never_reported), 1)


# names beside checkpoints that a user may choose; some sort before update-, some after it, some nearly look like ours
USERS_NAMES = (
    ".tmp-notes", "backup-mine", "best", "update-", "update-000001-copy", "update-best", "update-000001.bak", "zebra",
    "update-\u0661",
)  # fmt: skip


def test_what_a_user_keeps_beside_the_checkpoints_is_neither_removed_nor_counted_nor_loaded(tmp_path):
    for name in USERS_NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    for number in range(1, 5):
        save_number(tmp_path, number, keep=2)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*USERS_NAMES, "update-000003", "update-000004"])
    assert all((tmp_path / name / "notes.txt").read_text() == "mine" for name in USERS_NAMES)
    assert_whole(load_latest(tmp_path, never_reported), 4)


def test_a_number_of_more_digits_is_newer(tmp_path):
    for number in (99, 100, 101):
        save(tmp_path, f"update-{number}", {}, {"update": number}, keep=2)
    assert names(tmp_path) == ["update-100", "update-101"]
    assert load_latest(tmp_path, never_reported).state == {"update": 101}


def test_of_a_checkpoint_that_is_a_link_only_the_link_is_pruned(tmp_path):
    root = tmp_path / "checkpoints"
    save_number(root, 1)
    (root / "update-000001").rename(tmp_path / "elsewhere")
    (root / "update-000001").symlink_to(tmp_path / "elsewhere")
    assert_whole(load_latest(root, never_reported), 1)
    save_number(root, 2, keep=1)
    assert names(root) == ["update-000002"]
    assert (tmp_path / "elsewhere/state.json").exists()


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


@pytest.mark.parametrize("name", [".DS_Store", "._state.json", ".nfs000000012345", ".directory"])
def test_hidden_files_of_desktops_and_network_disks_are_not_damage(tmp_path, name):
    path = save_number(tmp_path, 20)
    (path / name).write_bytes(b"not ours")
    (tmp_path / name).write_bytes(b"not ours")
    assert_whole(load_latest(tmp_path, never_reported), 20)
    save_number(tmp_path, 40)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [name, "update-000020", "update-000040"]


DEEP = "[" * 100_000


@pytest.mark.parametrize("file", ["manifest.json", "state.json"])
def test_json_that_is_nested_too_deeply_is_damage_and_the_older_checkpoint_is_used(tmp_path, file):
    """Its checksum is right: somebody wrote it so."""
    save_number(tmp_path, 20)
    path = save_number(tmp_path, 40)
    (path / file).write_text(DEEP)
    if file == "state.json":
        (path / "manifest.json").unlink()
        write_manifest(path, path.name)
    reports: list[str] = []
    assert_whole(load_latest(tmp_path, reports.append), 20)
    assert len(reports) == 1
    assert f"update-000040 is damaged: {file} is not JSON: maximum recursion depth" in reports[0]


@pytest.mark.parametrize("state", ["{}", "[]", "3", '{"update": "40"}', '{"update": null}'])
def test_a_state_that_is_not_what_was_saved_is_damage_although_its_checksum_is_right(tmp_path, state):
    save_number(tmp_path, 20)
    path = save_number(tmp_path, 40)
    (path / "state.json").write_text(state)
    (path / "manifest.json").unlink()
    write_manifest(path, path.name)
    reports: list[str] = []
    assert_whole(load_latest(tmp_path, reports.append, {"update": int}), 20)
    assert len(reports) == 1
    assert "update-000040 is damaged: state.json " in reports[0]


def test_pipes_and_sockets_in_a_checkpoint_are_damage_and_nobody_waits_for_them(tmp_path):
    save_number(tmp_path, 20)
    for number, file in enumerate(FILES, start=40):
        path = save_number(tmp_path, number, keep=9)
        (path / file).unlink()
        os.mkfifo(path / file)
    path = save_number(tmp_path, 50, keep=9)
    (path / "state.json").unlink()
    with socket.socket(socket.AF_UNIX) as open_socket:
        open_socket.bind(str(path / "state.json"))
        reports: list[str] = []
        assert_whole(load_latest(tmp_path, reports.append), 20)
    assert len(reports) == len(FILES) + 1
    assert all("it is a pipe, a socket or a device, not a regular file" in report for report in reports)


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
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | edit, indent=1) + "\n")
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

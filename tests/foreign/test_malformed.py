"""Malformed model directories: each is loaded, or refused in one sentence that names the file and the field."""

import json
import os
import resource
import struct
from pathlib import Path

import pytest
import torch
from fixtures.cases import thorough
from foreign.broken_models import change, copy_of, loaded, one_sentence, refusal, write_model
from transformers import LlamaConfig, LlamaForCausalLM

from assay.config import ConfigError
from assay.policy.codec import PromptRefused
from assay.policy.embedded import tokenizer
from assay.types import Problem

DEEP = "[" * 100_000 + "]" * 100_000
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
WRONG = (None, "x", -1, 10**25, 1.5, float("nan"), [], {}, True, ["x"], {"a": 1})
CONFIG_FIELDS = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps",
    "max_position_embeddings", "rope_parameters", "hidden_act", "eos_token_id", "pad_token_id", "tie_word_embeddings",
    "dtype",
    "model_type", "attention_bias", "layer_types", "num_labels", "id2label", "quantization_config", "sliding_window",
    "text_config", "to_dict", "get_text_config", "transformers_weights", "attn_implementation", "per_layer_config",
)  # fmt: skip
ABOUT_TOKENS = ("eos_id", "EOS token", "context", "not finite")  # sentences with a name of their own for the fault
TOKENIZER_FIELDS = (
    "tokenizer_class", "model_max_length", "eos_token", "chat_template", "extra_special_tokens", "padding_side",
    "added_tokens_decoder", "model_input_names", "auto_map", "split_special_tokens", "clean_up_tokenization_spaces",
)  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "sound")


@pytest.fixture
def directory(sound, tmp_path):
    return copy_of(sound, tmp_path / "model")


def outcome(directory):
    """ "" if the directory is a policy that can be asked something, else the sentence."""
    try:
        policy = loaded(directory)
        policy.prompt(Problem("plain", "1+1?", "2"), max_tokens=1)
        policy.prompt(Problem("chat", "1+1?", "2", ({"role": "user", "content": "1+1?"},)), max_tokens=1)
    except (ConfigError, PromptRefused) as error:
        return one_sentence(error)
    return ""


@pytest.mark.parametrize("field", [*CONFIG_FIELDS[::2], *thorough(*CONFIG_FIELDS[1::2])])
def test_a_wrong_value_in_config_json_is_harmless_or_refused_with_its_name(directory, field):
    original = (directory / "config.json").read_text()
    refused = 0
    for value in WRONG:
        (directory / "config.json").write_text(original)
        change(directory / "config.json", **{field: value})
        sentence = outcome(directory)
        refused += bool(sentence)
        if sentence and not any(words in sentence for words in ABOUT_TOKENS):
            assert str(directory) in sentence
            assert field in sentence or "config.json" in sentence, (value, sentence)
    assert refused  # at least one of them cannot be right


@pytest.mark.parametrize("field", [*TOKENIZER_FIELDS[::2], *thorough(*TOKENIZER_FIELDS[1::2])])
def test_a_wrong_value_in_tokenizer_config_json_is_harmless_or_refused_with_its_name(directory, field):
    original = (directory / "tokenizer_config.json").read_text()
    for value in WRONG:
        (directory / "tokenizer_config.json").write_text(original)
        change(directory / "tokenizer_config.json", **{field: value})
        sentence = outcome(directory)
        if sentence and "template" not in sentence and "EOS token" not in sentence:
            assert str(directory) in sentence
            assert "tokenizer" in sentence, (value, sentence)


@pytest.mark.parametrize(
    ("file", "field", "value", "words"),
    [
        ("config.json", "hidden_size", "x", 'config.json: hidden_size = "x"'),
        ("config.json", "num_attention_heads", 0, "config.json (num_attention_heads = 0)"),
        ("config.json", "vocab_size", -5, "config.json: vocab_size = -5"),
        ("config.json", "vocab_size", 300, "has shape [260, 16] in the weights, but config.json asks for [300, 16]"),
        ("config.json", "sliding_window", [], "config.json: sliding_window = []"),
        ("config.json", "pad_token_id", 10**6, "config.json: pad_token_id = 1000000"),
        ("config.json", "num_labels", "x", 'config.json: num_labels = "x"'),
        ("config.json", "dtype", "float99", 'config.json: dtype = "float99"'),
        ("config.json", "rope_parameters", 3, "config.json: rope_parameters = 3"),
        ("config.json", "model_type", "nothing", "config.json: ValueError: The checkpoint you are trying to load"),
        ("generation_config.json", "watermarking_config", 3, "generation_config.json: watermarking_config = 3"),
        ("tokenizer_config.json", "tokenizer_class", 7, "tokenizer_config.json: tokenizer_class = 7"),
        ("tokenizer_config.json", "model_max_length", [], "tokenizer_config.json: model_max_length = []"),
        ("tokenizer.json", "model", 0, "tokenizer.json: data did not match any variant"),
        ("tokenizer.json", "added_tokens", 3, "tokenizer.json: invalid type: integer `3`"),
        ("tokenizer.json", "version", 1.5, "tokenizer.json: invalid type: floating point `1.5`"),
    ],
)
def test_the_sentence_names_the_file_the_field_and_the_fix(directory, file, field, value, words):
    change(directory / file, **{field: value})
    sentence = refusal(directory)
    assert words in sentence
    assert "correct it, or put the model's own file back" in sentence or "do not belong together" in sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("{not json", "is not JSON"),
        ("null", "holds NoneType instead of an object"),
        ("[]", "holds list instead of an object"),
        ("9" * 5000, "is not JSON"),
        (DEEP, "is nested too deeply"),
        ('{"a": ' + DEEP + "}", "is nested too deeply"),
    ],
    ids=["empty", "torn", "null", "list", "long number", "deep", "deep in a field"],
)
@pytest.mark.parametrize("name", JSON_FILES)
def test_what_is_no_json_object_is_refused_by_name(directory, name, text, words):
    (directory / name).write_text(text)
    assert f"cannot be loaded: {name} {words}" in refusal(directory)


def test_a_token_with_a_number_that_no_table_can_hold_is_refused(directory):
    words = json.loads((directory / "tokenizer.json").read_text())
    words["model"]["vocab"]["a"] = 2**31  # tokenizers would take gigabytes for its table, and abort
    (directory / "tokenizer.json").write_text(json.dumps(words))
    assert "tokenizer.json gives token 'a' the number 2147483648" in refusal(directory)


def header_of(file):
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_weights(file, header, body, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)


@pytest.mark.parametrize("length", [0, 7, 2**31, 2**60, 2**64 - 1])
def test_a_header_length_that_cannot_be_is_refused(directory, length):
    file = directory / "model.safetensors"
    write_weights(file, *header_of(file), length)
    assert "model.safetensors is damaged or not safetensors" in refusal(directory)


@pytest.mark.parametrize("text", [b"null", b"{}", b'{"a": 1}', DEEP.encode(), b"\xff" * 64])
def test_a_header_that_is_none_is_refused(directory, text):
    file = directory / "model.safetensors"
    write_weights(file, text, header_of(file)[1])
    assert "model.safetensors" in refusal(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [("shape", [2**62, 2**62]), ("shape", [-1]), ("shape", [15, 260]), ("dtype", "F99"), ("data_offsets", [0, 2**62])],
)
def test_a_tensor_that_cannot_be_is_refused(directory, field, value):
    file = directory / "model.safetensors"
    header, body = header_of(file)
    header["lm_head.weight"][field] = value
    write_weights(file, header, body)
    assert str(directory) in refusal(directory)


def test_weights_that_were_cut_off_or_renamed_or_are_not_numbers_are_refused(directory):
    file = directory / "model.safetensors"
    whole = file.read_bytes()
    header, body = header_of(file)
    file.write_bytes(whole[:-100])
    assert "model.safetensors is damaged" in refusal(directory)
    write_weights(
        file, {name + ("x" if name == "lm_head.weight" else ""): facts for name, facts in header.items()}, body
    )
    assert "lacks weights (lm_head.weight)" in refusal(directory)
    write_weights(file, header, b"\xff" * len(body))
    assert "logits are not finite" in refusal(directory)


def test_a_fault_of_ours_is_not_blamed_on_the_model(directory, monkeypatch):
    class Bug(Exception):
        pass

    def fail(*arguments):
        raise Bug

    monkeypatch.setattr("assay.policy.load.examine_policy", fail)
    with pytest.raises(Bug):
        loaded(directory)


def test_a_model_that_does_not_fit_into_memory_is_refused_in_a_sentence(tmp_path):
    """In a fork: the limit is that of a whole process."""
    shape = {"hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=50_000, eos_token_id=1, bos_token_id=None))
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    sentences = [in_a_fork(tmp_path, room) for room in (20 * 2**20, 150 * 2**20)]  # the weights have 100 MB
    for sentence in sentences:
        assert sentence.endswith("there is not enough memory for it; free some, or take a smaller model"), sentence
        assert "damaged" not in sentence


def in_a_fork(directory, room):
    result, answer = os.pipe()
    child = os.fork()
    if child == 0:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))
        torch.set_num_threads(1)
        try:
            sentence = outcome(directory)
        except BaseException as error:
            sentence = f"a traceback: {type(error).__name__}: {error}"
        os.write(answer, sentence.encode())
        os._exit(0)
    os.close(answer)
    os.waitpid(child, 0)
    with os.fdopen(result) as stream:
        return stream.read()

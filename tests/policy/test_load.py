"""Model directories that cannot be trained: one sentence each, and never a line of a stranger's code."""

import json
import shutil

import pytest
import torch
from fixtures.tiny import tiny_policy
from transformers import BertConfig, BertLMHeadModel

from assay.config import ConfigError, load
from assay.policy.embedded import tokenizer
from assay.policy.load import load_policy


@pytest.fixture
def directory(tmp_path):
    tiny_policy().model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def loaded(directory, *overrides):
    return load_policy(load(None, [f"model.path={directory}", *overrides]), lambda done, total: None)


def refused(directory):
    with pytest.raises(ConfigError) as caught:
        loaded(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sound_directory_is_loaded_with_the_settings_of_the_config(directory):
    policy = loaded(directory, "rollout.temperature=0.7", "model.dtype=bfloat16")
    assert policy.temperature == 0.7
    assert policy.eos_ids == (tokenizer().eos_token_id,)
    assert next(policy.model.parameters()).dtype == torch.bfloat16


def test_directories_with_something_missing_or_damaged_are_refused_in_a_sentence(directory, tmp_path):
    def without(*names):
        shutil.copytree(directory, tmp_path / "copy", dirs_exist_ok=True)
        for name in names:
            (tmp_path / "copy" / name).unlink()
        return tmp_path / "copy"

    assert "is not a directory on this machine" in refused("Qwen/Qwen2.5-0.5B")
    assert "cannot be loaded" in refused(without("model.safetensors"))
    shutil.rmtree(tmp_path / "copy")
    assert "tokenizer.json is missing" in refused(without("tokenizer.json"))
    shutil.rmtree(tmp_path / "copy")
    weights = without() / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "cannot be loaded" in refused(tmp_path / "copy")


def test_weights_that_would_start_at_random_are_refused(directory):
    from safetensors.torch import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    assert "lacks weights (model.norm.weight)" in refused(directory)


def test_pickled_weights_are_never_read(directory):
    (directory / "model.safetensors").unlink()
    torch.save(tiny_policy().model.state_dict(), directory / "pytorch_model.bin")
    assert "cannot be loaded" in refused(directory)


def test_code_in_the_directory_is_never_run(directory, monkeypatch):
    settings = json.loads((directory / "config.json").read_text())
    settings |= {
        "model_type": "stranger",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (directory / "config.json").write_text(json.dumps(settings))
    (directory / "evil.py").write_text(f"open({str(directory / 'RAN')!r}, 'w').close()\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    refused(directory)
    assert not (directory / "RAN").exists()


def test_a_model_that_looks_ahead_or_knows_too_few_tokens_is_refused(directory, tmp_path):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    BertLMHeadModel(BertConfig(vocab_size=13, **shape)).save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    assert "not causal" in refused(tmp_path / "bert")
    words = tokenizer()
    words.add_tokens(["x", "y"])
    words.save_pretrained(directory)
    assert "has 15 tokens, but the model knows only 13" in refused(directory)

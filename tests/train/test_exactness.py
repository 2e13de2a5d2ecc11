"""A model that computes other numbers when it samples than when it is trained is called out by the run itself."""

import json

import pytest
import torch
from fixtures.tiny import tiny_policy
from transformers import RobertaConfig, RobertaForCausalLM

from assay.config import load
from assay.policy.embedded import tokenizer
from assay.train.run import run


@pytest.fixture
def shifted_model(tmp_path):
    """A RoBERTa decoder numbers positions from padding_idx + 1; explicit position ids from 0 are other numbers."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    settings = RobertaConfig(
        vocab_size=13, is_decoder=True, max_position_embeddings=40, initializer_range=0.5, pad_token_id=0, **shape
    )
    RobertaForCausalLM(settings).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


ODD_CODE = """
from transformers import LlamaForCausalLM

class Odd(LlamaForCausalLM):
    def forward(self, input_ids, past_key_values=None, **how):
        output = super().forward(input_ids, past_key_values=past_key_values, **how)
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        output.logits = output.logits * (0.5 if seen > 8 else 2.0)
        return output
"""


@pytest.fixture
def odd_model(tmp_path):
    """A Llama that changes its mind when its cache is longer than a first look at it is."""
    model = tiny_policy().model
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    settings |= {"architectures": ["Odd"], "auto_map": {"AutoModelForCausalLM": "odd.Odd"}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model" / "odd.py").write_text(ODD_CODE)
    return tmp_path / "model"


def events(path):
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


def settings(**overrides):
    small = {
        "run.steps": 2,
        "evaluate.prompts": 0,
        "rollout.prompts": 4,
        "rollout.group_size": 4,
        "rollout.max_tokens": 10,
        "model.warm_steps": 2,
    }
    return load(None, [f"{name}={value}" for name, value in {**small, **overrides}.items()])


def test_a_model_that_counts_positions_in_its_own_way_is_sampled_as_it_is_trained(shifted_model, tmp_path):
    assert run.start(settings(**{"model.path": shifted_model}), tmp_path / "run") == 0
    assert all(event["kind"] != "inexact" for event in events(tmp_path / "run"))


def test_a_sampler_that_differs_from_the_trainer_is_called_out_once(odd_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    trusted = {"model.path": odd_model, "model.trust_remote_code": "true"}
    assert run.start(settings(**trusted), tmp_path / "run") == 0
    (alarm,) = [event for event in events(tmp_path / "run") if event["kind"] == "inexact"]
    assert alarm["step"] == 1
    assert alarm["mismatch_max"] > 0.1
    assert capsys.readouterr().err.count("is not exact: sampler and trainer differ") == 1


def test_a_sound_model_is_not_and_its_paths_are_recorded_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text("def score(prompt, completion, answer): return len(completion)\n")
    assert run.start(settings(**{"reward.functions": "reward.py:score"}), tmp_path / "run") == 0
    assert all(event["kind"] != "inexact" for event in events(tmp_path / "run"))
    assert load(tmp_path / "run" / "config.toml").reward.functions == (f"{tmp_path / 'reward.py'}:score",)


def test_a_run_fixes_what_its_bits_depend_on(tmp_path):
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(False)
        assert run.start(settings(), tmp_path / "run") == 0
        assert torch.get_num_threads() == 1  # run.threads
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)

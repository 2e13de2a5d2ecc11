"""What is no model, or a model without what it needs: one sentence each, naming the file and the way out."""

import json

import pytest
import torch
from fixtures.compared import sampled
from fixtures.tiny import prompt, tiny_policy
from safetensors.torch import load_file
from transformers import GenerationConfig

from assay.config import ConfigError, load
from assay.policy.embedded import tokenizer
from assay.policy.load import load_policy, suggested_sampling

CODE = """
import torch
from pathlib import Path
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

Path(__file__).with_name("RAN").touch()


class StrangeConfig(PretrainedConfig):
    model_type = "strange"
    vocab_size = 13


class StrangeModel(PreTrainedModel):
    config_class = StrangeConfig

    def __init__(self, config):
        super().__init__(config)
        self.bigram = torch.nn.Embedding(config.vocab_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, **rest):
        return CausalLMOutput(logits=self.bigram(input_ids))
"""


@pytest.fixture
def directory(tmp_path):
    tiny_policy().model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def loaded(path, *overrides, say=lambda sentence: None):
    return load_policy(load(None, [f"model.path={path}", *overrides]), lambda done, total: None, say)


def refused(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        loaded(path, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("config.json", "is not a Hugging Face model directory: no config.json in it"),
        ("tokenizer.json", "tokenizer.json is missing"),
        ("model.safetensors", "cannot be loaded"),
    ],
)
def test_a_directory_without_one_of_its_files_is_refused(directory, missing, sentence):
    (directory / missing).unlink()
    message = refused(directory)
    assert sentence in message
    assert str(directory) in message


def test_a_sharded_model_without_one_of_its_shards_is_refused_by_name(directory):
    (directory / "model.safetensors").unlink()
    tiny_policy().model.save_pretrained(directory, max_shard_size="10KB")
    shards = sorted(directory.glob("model-*.safetensors"))
    assert len(shards) > 1
    whole = loaded(directory).model.state_dict()
    expected = tiny_policy().model.state_dict()
    assert all(torch.equal(whole[name], weight) for name, weight in expected.items())
    shards[0].unlink()
    message = refused(directory)
    assert "cannot be loaded" in message
    assert shards[0].name in message


def test_an_adapter_without_its_model_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "holds a LoRA adapter without its model; merge the two first" in refused(tmp_path)


def test_a_run_is_no_model_directory(tmp_path):
    """`assay train` begins with the policy of a run; whoever loads a model by itself names one of its models."""
    (tmp_path / "run.json").write_text("{}")
    assert f"is a run; give one of its models, for instance {tmp_path / 'final'}" in refused(tmp_path)


def test_what_is_neither_a_path_nor_a_name_is_refused(tmp_path):
    assert "is neither a directory or .gguf file on this machine nor a name on the hub" in refused("no such/thing/here")
    assert "is neither a directory" in refused(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    assert "no config.json in it" in refused(tmp_path / "file")


def test_a_hub_name_without_a_network_is_refused_in_a_sentence(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    message = refused("someone/some-model")
    assert (
        "model.path = 'someone/some-model' is not a directory on this machine, and the hub could not give it" in message
    )


def test_a_damaged_config_is_refused_in_a_sentence(directory):
    (directory / "config.json").write_text("{not json")
    assert "cannot be loaded" in refused(directory)


def test_a_model_that_names_no_end_token_is_refused(directory):
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**settings, "eos_token_id": None, "eos_token": None}))
    assert "names an EOS token: no completion could ever end" in refused(directory)


def test_an_end_token_beyond_the_vocabulary_is_refused_with_the_directory(directory):
    GenerationConfig(eos_token_id=[1, 99]).save_pretrained(directory)
    message = refused(directory)
    assert str(directory) in message
    assert "eos_id = 99 can never be sampled" in message


def test_every_end_token_of_the_files_ends_an_answer(directory):
    GenerationConfig(eos_token_id=[4, 6]).save_pretrained(directory)
    assert set(loaded(directory).eos_ids) == {1, 4, 6}


def strange_model(tmp_path):
    """A model directory that brings its own code."""
    from safetensors.torch import save_file

    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "modeling_strange.py").write_text(CODE)
    settings = {
        "model_type": "strange",
        "architectures": ["StrangeModel"],
        "eos_token_id": 1,
        "auto_map": {
            "AutoConfig": "modeling_strange.StrangeConfig",
            "AutoModelForCausalLM": "modeling_strange.StrangeModel",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    weights = torch.arange(169.0).reshape(13, 13).sin()
    save_file({"bigram.weight": weights}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def test_a_models_own_code_runs_only_if_that_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    path = strange_model(tmp_path)
    message = refused(path)
    assert "cannot be loaded: config.json names Python code of its own (auto_map), which is not run" in message
    assert "model.trust_remote_code = true" in message
    assert not list(tmp_path.rglob("RAN"))
    policy = loaded(path, "model.trust_remote_code=true")
    assert list(tmp_path.rglob("RAN"))
    assert torch.equal(policy.model.bigram.weight, load_file(path / "model.safetensors")["bigram.weight"])
    assert not policy.abilities.cache
    assert len(sampled(policy, [prompt(0, (2, 3))], group_size=2, max_tokens=4)[0]) == 2
    assert "has none" in refused(path, "model.trust_remote_code=true", "model.gradient_checkpointing=true")


def test_a_generation_config_is_shown_and_not_applied(directory):
    said = []
    policy = loaded(directory, say=said.append)
    assert said == []
    assert suggested_sampling(policy.model) == ""
    GenerationConfig(
        eos_token_id=1, do_sample=True, temperature=0.1, top_p=0.2, repetition_penalty=1.3
    ).save_pretrained(directory)
    advised = loaded(directory, say=said.append)
    assert suggested_sampling(advised.model) == "temperature = 0.1, top_p = 0.2, repetition_penalty = 1.3"
    assert said == [
        "the model's generation config suggests temperature = 0.1, top_p = 0.2, repetition_penalty = 1.3; "
        "it is not applied: the [rollout] section decides"
    ]
    prompts = [prompt(0, (2, 3)), prompt(1, (4,))]
    assert sampled(advised, prompts, max_tokens=8) == sampled(policy, prompts, max_tokens=8)
    assert advised.temperature == 1.0

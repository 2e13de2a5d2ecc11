"""Sizes that a config claims and the weights cannot have: refused before a model of that size is built."""

import pytest
from foreign.broken_models import change, copy_of, loaded, refusal, write_model
from transformers import AlbertConfig, AlbertForSequenceClassification, AutoModelForSequenceClassification

from assay.config import ConfigError
from assay.foreign.directory import check_directory
from assay.foreign.read import read_model
from assay.foreign.sizes import check_counts
from assay.policy.embedded import tokenizer


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "sound")


@pytest.mark.parametrize("layers", [10**7, 10**12, 10**25])
def test_more_layers_than_the_weights_have_are_refused_at_once(sound, tmp_path, layers):
    directory = copy_of(sound, tmp_path / "model")
    change(directory / "config.json", num_hidden_layers=layers)
    assert f"config.json says num_hidden_layers = {layers}, but the weights are those of 2 layers" in refusal(directory)


def test_a_few_layers_too_many_lack_weights(sound, tmp_path):
    directory = copy_of(sound, tmp_path / "model")
    change(directory / "config.json", num_hidden_layers=3)
    assert "lacks weights (model.layers.2." in refusal(directory)


@pytest.mark.parametrize("field", ["num_labels", "num_experts", "num_attention_heads", "head_dim"])
def test_more_parts_than_the_weights_can_have_are_refused_by_name(sound, tmp_path, field):
    directory = copy_of(sound, tmp_path / "model")
    change(directory / "config.json", **{field: 10**8})
    assert f"config.json says {field} = 100000000, more than the weights can have" in refusal(directory)


@pytest.mark.parametrize("field", ["hidden_size", "intermediate_size", "vocab_size"])
def test_a_model_far_larger_than_its_weights_is_refused_with_the_field(sound, tmp_path, field):
    directory = copy_of(sound, tmp_path / "model")
    change(directory / "config.json", **{field: 2**28})
    sentence = refusal(directory)
    assert f"({field} = 268435456)" in sentence
    assert "config.json describes a model of" in sentence


def test_layers_that_share_their_weights_are_no_reason_to_refuse(tmp_path):
    """ALBERT runs one layer twelve times."""
    shape = {"hidden_size": 16, "embedding_size": 8, "intermediate_size": 24, "num_attention_heads": 2}
    model = AlbertForSequenceClassification(AlbertConfig(vocab_size=13, num_hidden_layers=12, **shape))
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    files = check_directory(tmp_path, "the judge")
    check_counts(files.config, files.shapes, "the judge", "config.json")
    how = {"dtype": model.dtype, "what": "the judge", "trust_remote_code": False}
    assert read_model(tmp_path, AutoModelForSequenceClassification, **how)


def test_sizes_in_nested_tables_are_looked_at_too():
    with pytest.raises(ConfigError, match="says num_hidden_layers = 1000"):
        check_counts({"text_config": {"num_hidden_layers": 1000}}, {"layers.0.weight": (2, 2)}, "it", "config.json")


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "qwen2", "qwen3", "mistral"])
def test_sound_models_are_not_refused(tmp_path, kind):
    assert loaded(write_model(tmp_path / kind, kind))

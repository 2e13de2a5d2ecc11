import copy

import pytest
import torch
from fixtures.families import KINDS
from peft import LoraConfig, get_peft_model
from safetensors.torch import load, save
from torch import nn
from torch.nn.functional import linear
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
)

from assay.llama.family import NotOfTheFamily, join_family

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
IDS_16 = torch.tensor([[3, 1, 4, 1, 5, 9]])


def made(kind="llama", **changes):
    torch.manual_seed(0)
    config, model = KINDS[kind]
    return model(config(**{**SHAPE, **changes})).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_moving_parameters_side_by_side_changes_no_number_and_no_parameter(kind):
    model = made(kind)
    before = {name: (weight, weight.detach().clone()) for name, weight in model.named_parameters()}
    logits = model(IDS_16).logits
    family = join_family(model)
    assert torch.equal(model(IDS_16).logits, logits)
    for name, weight in model.named_parameters():
        assert weight is before[name][0]  # an optimizer that holds it still does
        assert torch.equal(weight, before[name][1])
    for layer in family.layers:
        joined = torch.cat([part.weight_OI for part in layer.query_key_value.parts])
        assert torch.equal(layer.query_key_value.weight(), joined)
        assert layer.query_key_value.weight().data_ptr() == layer.query_key_value.parts[0].weight_OI.data_ptr()


def test_an_optimizer_step_is_seen_through_the_joined_matrix_at_once():
    model = made()
    family = join_family(model)
    seen = family.layers[1].gate_up.weight()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.add_(1.0)
    assert torch.equal(seen[24:], model.model.layers[1].mlp.up_proj.weight)
    assert family.layers[1].gate_up.widths == (24, 24)


def test_biases_are_joined_in_the_order_of_their_weights():
    model = made("qwen2")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    stack = join_family(model).layers[0].query_key_value
    inputs = torch.randn(3, 16)
    attention = model.model.layers[0].self_attn
    apart = torch.cat([attention.q_proj(inputs), attention.k_proj(inputs), attention.v_proj(inputs)], dim=1)
    torch.testing.assert_close(linear(inputs, stack.weight(), stack.bias()), apart)
    assert join_family(made()).layers[0].query_key_value.bias() is None


def test_biases_that_lie_apart_make_the_whole_stack_read_part_by_part():
    model = made("qwen2")
    stack = join_family(model).layers[0].query_key_value
    bias = model.model.layers[0].self_attn.k_proj.bias
    bias.data = bias.data.clone()
    assert stack.weight() is None


def test_adapters_that_are_switched_off_are_not_read():
    wrapped = get_peft_model(made(), LoraConfig(r=4, target_modules=["q_proj"]))
    wrapped.base_model.disable_adapter_layers()
    assert join_family(wrapped.get_base_model()).layers[0].query_key_value.parts[0].low_rank is None


def test_a_copied_model_is_read_part_by_part_until_it_is_read_anew():
    model = made()
    join_family(model)
    twin = copy.deepcopy(model)
    attention = twin.model.layers[0].self_attn
    assert attention.q_proj.weight.untyped_storage().data_ptr() != attention.k_proj.weight.untyped_storage().data_ptr()
    assert join_family(twin).layers[0].query_key_value.weight() is not None
    moved = made()
    family = join_family(moved)
    moved.double()
    assert family.layers[0].query_key_value.weight() is None


def _other_epsilon(model):
    model.model.layers[1].input_layernorm.variance_epsilon = 0.05


def _other_scale(model):
    model.model.layers[1].self_attn.scaling *= 1.2


@pytest.mark.parametrize(
    ("change", "reason"), [(_other_epsilon, "another epsilon than its config"), (_other_scale, "scale their attention")]
)
def test_a_layer_unlike_the_others_is_refused_whatever_the_precision(change, reason):
    model = made().to(torch.bfloat16)
    change(model)
    with pytest.raises(NotOfTheFamily, match=reason):
        join_family(model)


def test_joined_parameters_survive_files(tmp_path):
    model = made()
    join_family(model)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    assert all(torch.equal(weights[name], value) for name, value in load(save(weights)).items())
    model.save_pretrained(tmp_path)
    assert torch.equal(LlamaForCausalLM.from_pretrained(tmp_path)(IDS_16).logits, model(IDS_16).logits)


def test_adapters_are_read_beside_their_projections_and_left_out_for_the_reference():
    model = made()
    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"]))
    family = join_family(wrapped.get_base_model())
    queries, keys, _ = family.layers[0].query_key_value.parts
    assert queries.low_rank.scale == 3.0
    assert queries.low_rank.down_KI.shape == (4, 16)
    assert keys.low_rank is None
    assert family.layers[1].down.low_rank.up_OK.shape == (16, 4)
    plain = family.without_adapters()
    assert plain.layers[0].query_key_value.parts[0].low_rank is None
    assert plain.layers[0].query_key_value.parts[0].weight_OI is queries.weight_OI


def test_rotations_are_those_of_the_model():
    model = made(rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0})
    family = join_family(model)
    positions = torch.tensor([0, 1, 17])
    cosines, sines = model.model.rotary_emb(torch.zeros(1), positions.unsqueeze(0))
    ours = family.rotations(positions)
    torch.testing.assert_close(torch.cat([ours[0]] * 2, dim=1), cosines[0])
    torch.testing.assert_close(torch.cat([ours[1]] * 2, dim=1), sines[0])
    assert family.rotation_scale != 1.0


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (lambda: GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=2)), "GPT2LMHeadModel"),
        (lambda: made(hidden_act="gelu"), "gelu"),
        (lambda: made(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
        (lambda: _with(made(), "lm_head", nn.Sequential(nn.Linear(16, 32))), "Sequential"),
        (lambda: _hooked(made()), "model.layers.0.mlp has a hook"),
        (lambda: _wrapped(made()), "torch.nn.modules.container.Sequential in the place of its own part"),
        (lambda: get_peft_model(made(), LoraConfig(r=2, use_dora=True)).get_base_model(), "DoRA"),
        (lambda: get_peft_model(made(), LoraConfig(r=2, lora_dropout=0.1)).get_base_model(), "dropout"),
    ],
)
def test_a_model_that_is_computed_otherwise_is_refused_with_the_reason(model, word):
    with pytest.raises(NotOfTheFamily, match=word):
        join_family(model())


def test_a_window_of_attention_limits_the_length():
    assert join_family(made("mistral", sliding_window=7)).longest == 7
    assert join_family(made("mistral", sliding_window=None)).longest is None
    assert join_family(made("qwen2", sliding_window=7, use_sliding_window=False)).longest is None
    assert join_family(made("qwen2", sliding_window=7, use_sliding_window=True, max_window_layers=0)).longest == 7


def _with(model, name, module):
    setattr(model, name, module)
    return model


def _hooked(model):
    model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    return model


def _wrapped(model):
    model.model.layers[0].mlp = nn.Sequential(model.model.layers[0].mlp)
    return model

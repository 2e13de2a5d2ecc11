"""The packed forward against Hugging Face's own, in float64 where a mistake cannot hide behind rounding."""

import pytest
import torch
from fixtures.family_models import (
    GROUPS,
    KINDS,
    assert_same_gradients,
    gradients,
    model_of,
    our_loss,
    packed_of,
    their_loss,
    with_adapters,
)

from assay.llama.family import join_family
from assay.llama.forward import hidden_states


@pytest.fixture(params=[0, 128], ids=["tree by tree", "all together"], autouse=True)
def small_tree(request, monkeypatch):
    """Both ways to attend without a kernel for packed sequences."""
    monkeypatch.setattr("assay.llama.branches.SMALL_TREE", request.param)


@pytest.fixture(autouse=True)
def exact_norms(monkeypatch):
    """transformers norms in float32 whatever the model's dtype; here the oracle is to be float64 throughout."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    def exact(self, values):
        return self.weight * values * (values.square().mean(-1, keepdim=True) + self.variance_epsilon) ** -0.5

    for kind in (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
        monkeypatch.setattr(kind, "forward", exact)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_all_parameters_are_those_of_hugging_face(kind):
    model = model_of(kind)
    ours, theirs = our_loss(model, temperature=0.7), their_loss(model, temperature=0.7)
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)  # token numbers are given in float32
    assert_same_gradients(gradients(ours, model), gradients(theirs, model), 1e-9)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_in_float32_they_differ_by_rounding_alone(kind):
    model, exact = model_of(kind, torch.float32), model_of(kind)
    assert_same_gradients(gradients(our_loss(model), model), gradients(their_loss(exact), exact), 2e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_adapters_get_the_gradients_of_hugging_face_and_frozen_weights_get_none(kind):
    wrapped = with_adapters(model_of(kind))
    model = wrapped.get_base_model()
    ours = gradients(our_loss(model), model)
    assert set(ours) == {name for name, _ in model.named_parameters() if "lora_" in name}
    assert_same_gradients(ours, gradients(their_loss(wrapped), model), 1e-9)
    our_loss(model).backward()
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if "lora_" not in name)


def test_without_its_adapters_a_model_is_the_one_they_were_added_to():
    model = with_adapters(model_of("llama")).get_base_model()
    packed, _, _ = packed_of(GROUPS)
    plain_ND = hidden_states(join_family(model_of("llama")), packed)
    torch.testing.assert_close(
        hidden_states(join_family(model).without_adapters(), packed), plain_ND, rtol=0, atol=1e-12
    )
    assert (hidden_states(join_family(model), packed) - plain_ND).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prompt_has_the_gradients_of_prompts_computed_apart(kind):
    model = model_of(kind)
    shared, apart = our_loss(model, shared=True), our_loss(model, shared=False)
    torch.testing.assert_close(shared, apart, rtol=0, atol=1e-6)
    assert_same_gradients(gradients(shared, model), gradients(apart, model), 1e-12)


def test_groups_may_stand_in_any_order():
    family = join_family(model_of("qwen2"))
    packed, predictors_N, _ = packed_of(GROUPS)
    turned, turned_predictors_N, _ = packed_of(GROUPS[::-1])
    rows = torch.arange(len(predictors_N)).split([sum(map(len, completions)) for _, completions in GROUPS])
    order_N = torch.cat(rows[::-1])
    torch.testing.assert_close(
        hidden_states(family, turned)[turned_predictors_N],
        hidden_states(family, packed)[predictors_N][order_N],
        rtol=0,
        atol=1e-12,
    )


def test_a_token_does_not_depend_on_what_it_does_not_see():
    family = join_family(model_of("qwen3", torch.float32))
    (prompt, completions), *others = GROUPS
    packed, _, _ = packed_of([(prompt, completions), *others])
    changed, _, _ = packed_of([(prompt, [completions[0], [0], [*completions[2][:-1], 0]]), *others])
    same_N = packed.ids_N == changed.ids_N
    assert (~same_N).sum() == 2
    before_ND, after_ND = hidden_states(family, packed), hidden_states(family, changed)
    assert torch.equal(before_ND[same_N], after_ND[same_N])
    assert not torch.equal(before_ND[~same_N], after_ND[~same_N])


@pytest.mark.parametrize("kind", ["llama-tied", "qwen3"])
@pytest.mark.parametrize("adapters", [False, True])
def test_gradients_and_computing_again_change_no_bit(kind, adapters):
    model = model_of(kind, torch.float32)
    if adapters:
        model = with_adapters(model).get_base_model()
    family, (packed, _, _) = join_family(model), packed_of(GROUPS)
    with torch.no_grad():
        plain_ND = hidden_states(family, packed)
    kept_ND, again_ND = hidden_states(family, packed), hidden_states(family, packed, checkpointing=True)
    assert torch.equal(plain_ND, kept_ND)
    assert torch.equal(plain_ND, again_ND)
    kept = gradients(our_loss(model), model)
    again = gradients(our_loss(model, checkpointing=True), model)
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_computing_again_keeps_less():
    family, (packed, _, _) = join_family(model_of("llama", torch.float32)), packed_of(GROUPS)
    sizes = []
    for checkpointing in (False, True):
        kept = {}

        def keep(tensor, kept=kept):
            kept[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            hidden_states(family, packed, checkpointing=checkpointing)
        sizes.append(sum(kept.values()))
    assert sizes[1] < sizes[0] / 2


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_parameters_that_lie_apart_give_the_same_gradients(kind):
    model = model_of(kind)
    together = gradients(our_loss(model), model)
    family = join_family(model)
    assert all(stack.weight() is not None for stack in family.stacks)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    assert all(stack.weight() is None for stack in family.stacks)
    packed, predictors_N, _ = packed_of(GROUPS)
    states_ND = hidden_states(family, packed)
    model_of_whole = model_of(kind)
    torch.testing.assert_close(states_ND, hidden_states(join_family(model_of_whole), packed), rtol=0, atol=1e-12)
    states_ND[predictors_N].sum().backward()
    reference = join_family(model_of_whole)
    hidden_states(reference, packed)[predictors_N].sum().backward()
    assert together.keys() == dict(model.named_parameters()).keys()
    for (name, ours), theirs in zip(model.named_parameters(), model_of_whole.parameters(), strict=True):
        if name != "lm_head.weight":
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_is_kept_is_what_a_cache_holds(kind):
    model, kept = model_of(kind), {}
    packed, _, _ = packed_of([([1, 2, 3, 4], [])])
    with torch.no_grad():
        hidden_states(join_family(model), packed, lambda layer, keys, values: kept.update({layer: (keys, values)}))
        cache = model(packed.ids_N.unsqueeze(0), use_cache=True).past_key_values
    assert list(kept) == [0, 1]
    for number, (keys_NKW, values_NKW) in kept.items():
        theirs = cache.layers[number]
        torch.testing.assert_close(keys_NKW.transpose(0, 1), theirs.keys[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(values_NKW.transpose(0, 1), theirs.values[0], rtol=0, atol=1e-9)

"""Attention of segments and of stems, joined; and the whole fused forward, its flash attention done by torch."""

import pytest
import torch
from fixtures.family_models import GROUPS, gradients, model_of, our_loss, packed_of, with_adapters
from llama.kernels.oracles import assert_close, flash_backward, flash_forward, random

from assay.llama import flash, forward, packed
from assay.llama.kernels.merge import merge


@pytest.fixture
def _flash_in_torch(monkeypatch):
    monkeypatch.setattr(flash, "attend", flash_forward)
    monkeypatch.setattr(flash, "attend_backward", flash_backward)


def test_two_attentions_become_the_attention_over_all_keys():
    """Log-sum-exps ln 1 and ln 3: a quarter of the first and three quarters of the second."""
    outputs, others = torch.ones(2, 1, 4), torch.full((2, 1, 4), 5.0)
    logsumexp, other = torch.zeros(1, 2), torch.full((1, 2), 3.0).log()
    joint, total = merge(outputs, logsumexp, others, other, torch.tensor([True, False]))
    assert_close(joint[0], torch.full((1, 4), 4.0, dtype=torch.float64))
    assert_close(total[0, 0], torch.tensor(4.0, dtype=torch.float64).log())
    assert joint[1].tolist() == [[1.0] * 4]
    assert total[0, 1] == 0


def test_a_second_attention_without_keys_is_not_looked_at():
    outputs, logsumexp = random(3, 2, 4), random(2, 3, seed=1)
    nothing = torch.full((2, 3), float("inf"))
    joint, total = merge(
        outputs, logsumexp, torch.full((3, 2, 4), float("nan")), nothing, torch.zeros(3, dtype=torch.bool)
    )
    assert torch.equal(joint, outputs)
    assert torch.equal(total, logsumexp)


@pytest.mark.usefixtures("_flash_in_torch")
@pytest.mark.parametrize("groups", [GROUPS, GROUPS[1:], [([1, 2, 3], [])], [([1], [[2], [3]]), ([4, 5], [[6]])]])
def test_attention_and_its_gradients_are_those_of_the_masks(groups):
    layout, _, _ = packed_of(groups)
    tokens = len(layout.ids_N)
    leaves = [random(tokens, heads, 4, seed=heads).requires_grad_() for heads in (4, 2, 2)]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    ours = flash.flash_attention(*leaves, layout.spans, 0.6)
    expected = packed.attention(*exact, layout, 0.6)
    assert_close(ours, expected)
    gradient = random(*ours.shape, seed=9)
    made = torch.autograd.grad(ours, leaves, gradient)
    for mine, other in zip(made, torch.autograd.grad(expected, exact, gradient.double()), strict=True):
        assert_close(mine, other, 5e-6)


@pytest.mark.usefixtures("_flash_in_torch")
@pytest.mark.parametrize(("kind", "adapters"), [("llama", False), ("qwen3", True)])
def test_the_fused_forward_has_the_gradients_of_the_plain_one(kind, adapters, monkeypatch):
    model, exact = model_of(kind, torch.float32), model_of(kind)
    if adapters:
        model, exact = with_adapters(model), with_adapters(exact)
        exact.load_state_dict(model.state_dict())
        model, exact = model.get_base_model(), exact.get_base_model()
    wanted = gradients(our_loss(exact, GROUPS[1:]), exact)
    monkeypatch.setattr(forward, "_uses_kernels", lambda values: True)
    monkeypatch.setattr(packed, "is_usable", lambda queries: True)
    ours = {
        checkpointing: gradients(our_loss(model, GROUPS[1:], checkpointing=checkpointing), model)
        for checkpointing in (False, True)
    }
    for name, gradient in wanted.items():
        error = (ours[False][name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-3)
        assert error <= 3e-5, f"{name}: {error:.1e}"
        assert torch.equal(ours[False][name], ours[True][name])


def test_boundaries_by_hand():
    """Segments of 5, 3, 1 and 4 tokens (the last three see the first), 2 and 3, 1 and 2 and 2."""
    layout, _, _ = packed_of(GROUPS)
    spans, stems = layout.spans, layout.spans.stems
    assert spans.segments_S.tolist() == [0, 5, 8, 9, 13, 15, 18, 19, 21, 23]
    assert spans.longest == 5
    assert stems.rows_M.tolist() == [0, 1, 2, 3, 4, 13, 14, 18]
    assert stems.queries_R.tolist() == [0, 5, 13, 15, 18, 19, 23, 23]
    assert stems.keys_R.tolist() == [0, 0, 5, 5, 7, 7, 8, 8]
    assert (stems.longest_run, stems.longest_stem) == (8, 5)
    assert stems.seen_N.nonzero().flatten().tolist() == [*range(5, 13), 15, 16, 17, 19, 20, 21, 22]
    assert stems.back_N.tolist() == [0, 1, 2, 3, 4, *[8] * 8, 5, 6, 8, 8, 8, 7, *[8] * 4]

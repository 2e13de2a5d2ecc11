"""Rotation, with and without norms of the heads, against the torch expressions in float64."""

import pytest
import torch
from llama.kernels.oracles import assert_close, random

from assay.llama import forward
from assay.llama.kernels import rotation as rotation_kernels
from assay.llama.kernels.rotation import rotate_heads

HEADS, KEY_HEADS, TOKENS = 3, 1, 5


def expression(joined_NC, cosines_NF, sines_NF, query_norm, key_norm, epsilon):
    width = 2 * cosines_NF.shape[1]
    sizes = [HEADS * width, KEY_HEADS * width, KEY_HEADS * width]
    queries, keys, values = (part.unflatten(1, (-1, width)) for part in joined_NC.split(sizes, dim=1))
    if query_norm is not None:
        queries, keys = forward.norm(queries, query_norm, epsilon), forward.norm(keys, key_norm, epsilon)
    queries, keys = (forward.rotate(part, cosines_NF, sines_NF) for part in (queries, keys))
    return torch.cat([part.flatten(1) for part in (queries, keys, values)], dim=1)


def given(half, normed):
    width = 2 * half
    joined_NC = random(TOKENS, (HEADS + 2 * KEY_HEADS) * width)
    angles_NF = random(TOKENS, half, seed=1) * 3
    norms = [random(width, seed=2), random(width, seed=3)] if normed else [None, None]
    return joined_NC, angles_NF.cos() * 1.1, angles_NF.sin() * 1.1, norms


@pytest.mark.parametrize("half", [4, 3])
@pytest.mark.parametrize("normed", [False, True])
def test_numbers_and_gradients_are_those_of_the_expression(half, normed, monkeypatch):
    monkeypatch.setattr(rotation_kernels, "PROGRAMS", 2)
    joined_NC, cosines_NF, sines_NF, norms = given(half, normed)
    leaves = [joined_NC.requires_grad_(), *(norm.requires_grad_() for norm in norms if norm is not None)]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    ours = rotate_heads(joined_NC * 1, cosines_NF, sines_NF, HEADS, KEY_HEADS, *norms, 0.1)
    exact_norms = exact[1:] or [None, None]
    expected = expression(exact[0], cosines_NF.double(), sines_NF.double(), *exact_norms, 0.1)
    assert_close(ours, expected)
    gradient = random(*joined_NC.shape, seed=4)
    made = torch.autograd.grad(ours, leaves, gradient)
    for mine, other in zip(made, torch.autograd.grad(expected, exact, gradient.double()), strict=True):
        assert_close(mine, other)


@pytest.mark.parametrize("normed", [False, True])
def test_in_half_precision_it_rounds_where_the_expression_rounds(normed):
    joined_NC, cosines_NF, sines_NF, norms = given(4, normed)
    joined_NC, norms = joined_NC.half(), [None if norm is None else norm.half() for norm in norms]
    expected = expression(joined_NC, cosines_NF, sines_NF, *norms, 1e-5)
    assert torch.equal(rotate_heads(joined_NC.clone(), cosines_NF, sines_NF, HEADS, KEY_HEADS, *norms, 1e-5), expected)


def test_without_norms_nothing_is_copied_and_with_norms_the_input_stays():
    for normed in (False, True):
        joined_NC, cosines_NF, sines_NF, norms = given(4, normed)
        before_NC = joined_NC.clone()
        turned_NC = rotate_heads(joined_NC, cosines_NF, sines_NF, HEADS, KEY_HEADS, *norms, 1e-5)
        assert (turned_NC.data_ptr() == joined_NC.data_ptr()) is not normed
        assert torch.equal(joined_NC, before_NC) is normed

"""Attention of a stem and its branches against plain attention of every sequence by itself, in float64."""

import pytest
import torch

from assay.llama.branches import seen_by_a_branch, tree_attention

SHAPES = {"equal": (5, 3, 3), "unequal": (2, 1, 6, 4), "one token each": (1, 1, 1), "alone": (4,), "long stem": (9, 2)}


def by_hand(queries, keys, values, scale):
    """softmax(q k^T) v of one sequence, token by token."""
    heads, shared = queries.shape[1], queries.shape[1] // keys.shape[1]
    outputs = []
    for token in range(len(queries)):
        for head in range(heads):
            seen = keys[: token + 1, head // shared]
            weights = (seen @ queries[token, head] * scale).softmax(dim=0)
            outputs.append(weights @ values[: token + 1, head // shared])
    return torch.stack(outputs).unflatten(0, (len(queries), heads))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_branch_is_computed_as_if_it_stood_alone_behind_its_stem(shape):
    stem, *branches = lengths = SHAPES[shape]
    torch.manual_seed(0)
    heads = [torch.randn(sum(lengths), count, 4, dtype=torch.float64, requires_grad=True) for count in (6, 2, 2)]
    weights = torch.randn(sum(lengths), 6, 4, dtype=torch.float64)
    mask = seen_by_a_branch(lengths, torch.device("cpu")) if branches else None
    outputs = tree_attention(*heads, lengths, mask, 0.3)
    gradients = torch.autograd.grad((outputs * weights).sum(), heads)
    expected = [by_hand(*(each[:stem] for each in heads), 0.3)]
    first = stem
    for length in branches:
        own = [*range(stem), *range(first, first + length)]
        expected.append(by_hand(*(each[own] for each in heads), 0.3)[stem:])
        first += length
    expected = torch.cat(expected)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(gradients, torch.autograd.grad((expected * weights).sum(), heads), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_mask_by_hand():
    assert seen_by_a_branch((2, 1, 3), torch.device("cpu")).int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]

"""Who sees whom among packed tokens: attention against a loop over tokens, in float64."""

import pytest
import torch
from fixtures.family_models import GROUPS, packed_of

from assay.llama.packed import Packed, Segment, attention

HEADS, KEY_HEADS, WIDTH = 4, 2, 3


@pytest.fixture(params=[0, 128], ids=["tree by tree", "all together"], autouse=True)
def small_tree(request, monkeypatch):
    """Both ways to attend without a kernel for packed sequences."""
    monkeypatch.setattr("assay.llama.branches.SMALL_TREE", request.param)


def seen_by(token, segments):
    """Numbers of the tokens that one sees, from the definition alone."""
    own = next(segment for segment in segments if segment.start <= token < segment.end)
    stem = segments[own.stem] if own.stem >= 0 else Segment(0, 0)
    return [*range(stem.start, stem.end), *range(own.start, token + 1)]


def one_by_one(queries_NHW, keys_NKW, values_NKW, packed, scale):
    outputs = []
    for token, query_HW in enumerate(queries_NHW):
        seen = seen_by(token, packed.segments)
        for head, query_W in enumerate(query_HW):
            key_head = head // (HEADS // KEY_HEADS)
            shares = (keys_NKW[seen, key_head] @ query_W * scale).softmax(0)
            outputs.append(shares @ values_NKW[seen, key_head])
    return torch.stack(outputs).view(queries_NHW.shape)


def heads(tokens, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(tokens, count, WIDTH, dtype=dtype, generator=generator).requires_grad_()
        for count in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


@pytest.mark.parametrize(
    "groups",
    [
        GROUPS,
        [([1, 2, 3], [])],  # a tree of one
        [([1], [[2]])],
        [([1, 2], []), ([3, 4], [[5], [6, 7]]), ([8], [])],
        [([1, 2, 3], [[4, 5], [6, 7]]), ([1, 2, 3], [[4, 5], [6, 7]])],  # two alike
    ],
)
def test_each_token_sees_its_segment_up_to_itself_and_the_whole_stem(groups):
    packed, _, _ = packed_of(groups)
    given = heads(len(packed.ids_N))
    ours, expected = (how(*given, packed, 0.4) for how in (attention, one_by_one))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    weights = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(1))
    for mine, other in zip(
        torch.autograd.grad((ours * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_what_a_token_does_not_see_changes_no_bit_of_it():
    packed, _, _ = packed_of(GROUPS)
    given = heads(len(packed.ids_N), torch.float32)
    before = attention(*given, packed, 0.4)
    for changed in range(len(packed.ids_N)):
        keys, values = (part.detach().clone() for part in given[1:])
        keys[changed], values[changed] = 3.0, -2.0
        after = attention(given[0], keys, values, packed, 0.4)
        moved = {token for token in range(len(before)) if not torch.equal(before[token], after[token])}
        assert moved == {token for token in range(len(before)) if changed in seen_by(token, packed.segments)}


def test_gradients_change_no_bit():
    packed, _, _ = packed_of(GROUPS)
    given = heads(len(packed.ids_N), torch.float32)
    with torch.no_grad():
        plain = attention(*given, packed, 0.4)
    assert torch.equal(plain, attention(*given, packed, 0.4))


def test_sequences_that_have_nothing_to_do_with_each_other():
    packed = Packed.of_sequences([[5, 6, 7], [8]], torch.device("cpu"))
    assert packed.ids_N.tolist() == [5, 6, 7, 8]
    assert packed.positions_N.tolist() == [0, 1, 2, 0]
    assert packed.segments == (Segment(0, 3), Segment(3, 4))
    assert packed.trees == ((Segment(0, 3),), (Segment(3, 4),))
    assert packed.spans.stems is None


def test_a_stem_and_its_branches_are_one_tree():
    packed, _, _ = packed_of(GROUPS)
    assert [len(tree) for tree in packed.trees] == [4, 2, 3]
    assert [tree[0].start for tree in packed.trees] == [0, 13, 18]
    assert all(segment.stem < 0 for tree in packed.trees for segment in tree[:1])

"""Attention of one new token per slot against the same in float64, written out."""

import fixtures.interpreted  # noqa: F401  before triton
import pytest
import torch
from llama.kernels.lanes import scene

from assay.llama.kernels.decode_attention import Heads, Tiles, attend, remember, split_room
from assay.llama.kernels.shared_memory import PLENTY

SLOTS = [(0, 0, 0), (2, 9, 3), (1, 4, 6), (2, 9, 0), (1, 0, 5)]


def rotated(head_W, cosines, sines):
    left, right = head_W.chunk(2)
    return torch.cat([left * cosines - right * sines, right * cosines + left * sines])


def normed(head_W, weight_W, epsilon):
    return head_W / (head_W.square().mean() + epsilon).sqrt() * weight_W


def by_hand(stage, qkv_LO, heads, layer, norms):
    """(outputs, new keys, new values) in float64."""
    outputs, keys, values = [], [], []
    caches = (stage.prompts.double(), stage.own.double())
    for slot, (cache_row, before, done) in enumerate(SLOTS):
        row = qkv_LO[slot].double().view(-1, heads.width)
        queries, new_keys = row[: heads.heads], row[heads.heads : -heads.key_heads]
        if norms is not None:
            queries = torch.stack([normed(query, norms[0].double(), heads.epsilon) for query in queries])
            new_keys = torch.stack([normed(key, norms[1].double(), heads.epsilon) for key in new_keys])
        cosines, sines = stage.rotations_NW[before + done].double().chunk(2)
        queries = torch.stack([rotated(query, cosines, sines) for query in queries])
        new_keys = torch.stack([rotated(key, cosines, sines) for key in new_keys])
        new_values = row[-heads.key_heads :]
        own_row = len(SLOTS) - slot
        for number, query in enumerate(queries):
            key_head = number // (heads.heads // heads.key_heads)
            seen = [
                torch.cat(
                    [
                        caches[0][layer, which, cache_row, key_head, :before],
                        caches[1][layer, which, own_row, key_head, :done],
                        new[key_head].unsqueeze(0),
                    ]
                )
                for which, new in enumerate((new_keys, new_values))
            ]
            outputs.append((seen[0] @ query * heads.scale).softmax(0) @ seen[1])
        keys.append(new_keys)
        values.append(new_values)
    return torch.stack(outputs).view(len(SLOTS), -1), torch.stack(keys), torch.stack(values)


@pytest.mark.parametrize(
    ("heads", "key_heads", "width", "splits", "is_normed", "layer"),
    [(6, 2, 8, 1, False, 1), (2, 2, 8, 2, False, 0), (4, 1, 12, 4, True, 1), (3, 1, 16, 1, True, 0)],
)
def test_attention_is_that_of_float64(heads, key_heads, width, splits, is_normed, layer):
    shape = Heads(heads, key_heads, width, scale=0.3, epsilon=1e-5)
    stage = scene(SLOTS, key_heads=key_heads, width=width)
    generator = torch.Generator().manual_seed(5)
    qkv_LO = torch.randn(len(SLOTS), (heads + 2 * key_heads) * width, generator=generator)
    norms = tuple(torch.rand(2, width, generator=generator) + 0.5) if is_normed else None
    before = stage.own.clone()
    wanted, keys, values = by_hand(stage, qkv_LO, shape, layer, norms)
    outputs_LO = torch.full((len(SLOTS), heads * width), torch.nan)
    room = split_room(shape, torch.device("cpu"))
    attend(qkv_LO, outputs_LO, stage.state_LF, stage.places, layer, shape, Tiles(splits, 4, 4, 1), room, norms)
    torch.testing.assert_close(outputs_LO.double(), wanted, rtol=0, atol=2e-6)
    # the new key and value lie where the slot's next look will find them, and nothing else has changed
    for slot, (_, _, done) in enumerate(SLOTS):
        before[layer, 0, len(SLOTS) - slot, :, done] = keys[slot].float()
        before[layer, 1, len(SLOTS) - slot, :, done] = values[slot].float()
    torch.testing.assert_close(stage.own, before, rtol=0, atol=1e-6)


def test_what_lies_behind_the_valid_entries_is_not_read():
    shape = Heads(2, 2, 8, scale=0.3, epsilon=1e-5)
    stage = scene(SLOTS)
    for slot, (cache_row, _, done) in enumerate(SLOTS):
        stage.own[:, :, len(SLOTS) - slot, :, done:] = torch.nan
        if cache_row != 2:
            stage.prompts[:, :, cache_row, :, max(row[1] for row in SLOTS if row[0] == cache_row) :] = torch.nan
    outputs_LO = torch.zeros(len(SLOTS), 16)
    room = split_room(shape, torch.device("cpu"))
    attend(
        torch.randn(len(SLOTS), 48), outputs_LO, stage.state_LF, stage.places, 0, shape, Tiles(1, 4, 4, 1), room, None
    )
    assert outputs_LO.isfinite().all()


@pytest.mark.parametrize("is_normed", [False, True])
def test_prompts_are_turned_and_remembered_in_their_rows(is_normed):
    heads, layer = Heads(6, 2, 12, scale=0.3, epsilon=1e-5), 1
    stage = scene(SLOTS, key_heads=2, width=12)
    wanted_cache = stage.prompts.clone()
    qkv_NO, turned_NO = torch.randn(5, 10 * 12), torch.full((5, 8 * 12), torch.nan)
    norms = (torch.rand(12) + 0.5, torch.rand(12) + 0.5) if is_normed else None
    rows_N, positions_N = torch.tensor([2, 2, 0, 0, 0]), torch.tensor([0, 1, 0, 1, 2])
    remember(qkv_NO, turned_NO, rows_N, positions_N, stage.places, layer, heads, norms)
    for token, (cache_row, position) in enumerate(zip(rows_N.tolist(), positions_N.tolist(), strict=True)):
        cosines, sines = stage.rotations_NW[position].chunk(2)
        rows = qkv_NO[token].view(10, 12)
        turned = []
        for number, head_W in enumerate(rows[:8]):
            weighed_W = normed(head_W, norms[number // 6], heads.epsilon) if is_normed else head_W
            turned.append(rotated(weighed_W, cosines, sines))
        torch.testing.assert_close(turned_NO[token].view(8, 12), torch.stack(turned), rtol=0, atol=2e-6)
        wanted_cache[layer, 0, cache_row, :, position] = torch.stack(turned[6:])
        wanted_cache[layer, 1, cache_row, :, position] = rows[8:]
    torch.testing.assert_close(stage.prompts, wanted_cache, rtol=0, atol=2e-6)


def test_a_context_is_split_only_where_slots_are_few_and_it_is_long():
    heads = Heads(14, 2, 64, 0.125, 1e-6)
    shapes = ((256, 4096), (16, 400), (16, 4096), (1, 100000))
    splits = [Tiles.for_slots(slots, heads, context, torch.bfloat16, PLENTY).splits for slots, context in shapes]
    assert splits == [1, 1, 16, 32]


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shared", [232_448, 166_912, 101_376, 65_536])  # of Hopper, A100, consumer cards, Turing
def test_tiles_fit_into_the_shared_memory_of_smaller_devices(width, dtype, shared):
    heads = Heads(16, 8, width, 1.0, 1e-6)
    for slots in (4, 16, 64, 1024):
        tiles = Tiles.for_slots(slots, heads, 1024, dtype, shared)
        assert tiles.shared_bytes(heads, dtype) <= shared
        assert tiles.block >= 16
        assert tiles.stages >= 1


def test_what_a_tile_takes_is_what_the_compiler_took():
    """Seen with Triton 3.6 for devices of capability 8.0, 8.9 and 9.0 alike."""
    for width, block, stages, taken in ((128, 128, 3, 139_264), (64, 128, 3, 71_680), (256, 128, 3, 274_432)):
        assert Tiles(1, block, 4, stages).shared_bytes(Heads(16, 8, width, 1.0, 1e-6), torch.bfloat16) == taken

"""The fused matmuls against float64, on shapes that no tile divides. Without a CUDA device float16 stands for bfloat16,
which Triton's interpreter cannot multiply."""

import itertools

import pytest
import torch
from fixtures import interpreted  # before triton
from fixtures.cases import thorough
from torch.nn.functional import silu

from assay.llama.kernels import matmul
from assay.llama.kernels.matmul_tiles import Tile, fitting, gated_tile, normed_tile, residual_tile

DEVICE = torch.device("cpu")  # on a GPU all of this is skipped: see interpreted.py
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
ROUNDING = {torch.float32: 1e-6, HALF: 3 * torch.finfo(HALF).eps}  # of a row, relative to its length
EPSILON = 1e-5
CASES = [  # rows, hidden, the other width, has a bias, dtype
    (5, 48, 40, True, torch.float32),
    (33, 80, 56, True, HALF),
    (1, 16, 16, False, HALF),
    *thorough((17, 96, 32, False, torch.float32)),
]
TILES = [Tile(16, 32, 32), Tile(32, 16, 16), None]  # None: cuBLAS and small kernels


def drawn(*shape, dtype, scale=1.0):
    """Different numbers for every shape, the same ones in every run."""
    generator = torch.Generator().manual_seed(sum(index * size for index, size in enumerate(shape, start=7)))
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def nowhere(*shape, dtype):
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


def exact_norm(states_BD, norm_D):
    states_BD = states_BD.double()
    return states_BD * torch.rsqrt(states_BD.square().mean(1, keepdim=True) + EPSILON) * norm_D.double()


def exact_matmul(inputs_BI, weight_OI, bias_O):
    return inputs_BI.double() @ weight_OI.double().t() + (0 if bias_O is None else bias_O.double())


def error(found, expected):
    return ((found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


def begun(rows, hidden, widest, dtype):
    """Some rows are small and some are large; there is room for more rows than there are."""
    sizes_B1 = 0.01 * 4 ** (torch.arange(rows, device=DEVICE) % 5).to(dtype)[:, None]
    room = matmul.Room.make(rows + 3, hidden, widest, dtype, DEVICE)
    norm_D = 1 + drawn(hidden, dtype=dtype) / 4
    return matmul.begin(drawn(rows, hidden, dtype=dtype) * sizes_B1, norm_D, EPSILON, room)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("rows", "hidden", "outputs", "has_bias", "dtype"), CASES)
def test_a_normed_matmul_is_the_norm_and_the_matmul(rows, hidden, outputs, has_bias, dtype, tile):
    stream = begun(rows, hidden, outputs, dtype)
    weight_OD, bias_O = drawn(outputs, hidden, dtype=dtype), drawn(outputs, dtype=dtype) if has_bias else None
    out_BO = nowhere(rows, outputs, dtype=dtype)
    if tile is None:
        matmul.plain_normed(stream, weight_OD, bias_O, out_BO)
    else:
        matmul.fused_normed(stream, weight_OD, bias_O, out_BO, tile)
    expected_BO = exact_matmul(exact_norm(stream.states_BD, stream.norm_D), weight_OD, bias_O)
    assert error(out_BO, expected_BO) < ROUNDING[dtype]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("rows", "hidden", "width", "has_bias", "dtype"), CASES)
def test_a_gated_matmul_is_silu_of_the_gate_times_the_up(rows, hidden, width, has_bias, dtype, tile):
    stream = begun(rows, hidden, 2 * width, dtype)
    weight_OD = drawn(2 * width, hidden, dtype=dtype, scale=0.3)
    bias_O = drawn(2 * width, dtype=dtype) if has_bias else None
    out_BI = nowhere(rows, width, dtype=dtype)
    if tile is None:
        matmul.plain_normed(stream, weight_OD, bias_O, out_BI, gated=True)
    else:
        matmul.fused_normed(stream, weight_OD, bias_O, out_BI, tile, gated=True)
    gate_BI, up_BI = exact_matmul(exact_norm(stream.states_BD, stream.norm_D), weight_OD, bias_O).chunk(2, dim=1)
    assert error(out_BI, silu(gate_BI) * up_BI) < 2 * ROUNDING[dtype]


@pytest.mark.parametrize("splits", [0, 1, 3])
@pytest.mark.parametrize(("rows", "hidden", "inputs", "has_bias", "dtype"), CASES)
def test_a_residual_matmul_adds_and_prepares_the_next_norm(rows, hidden, inputs, has_bias, dtype, splits):
    """splits 0: cuBLAS. Twice in a row: what the first leaves behind in the room must not disturb the second."""
    stream = begun(rows, hidden, hidden, dtype)
    weight_DI, bias_D = drawn(hidden, inputs, dtype=dtype), drawn(hidden, dtype=dtype) if has_bias else None
    next_norm_D = 2 - drawn(hidden, dtype=dtype) / 4
    expected_BD = stream.states_BD.double()
    for turn in range(2):
        inputs_BI = drawn(rows, inputs, dtype=dtype) * (turn + 1)
        expected_BD = expected_BD + exact_matmul(inputs_BI, weight_DI, bias_D)
        if splits:
            tile = Tile(32, 32, 16, splits=splits)
            stream = matmul.fused_residual(inputs_BI, weight_DI, bias_D, stream, next_norm_D, tile)
        else:
            stream = matmul.plain_residual(inputs_BI, weight_DI, bias_D, stream, next_norm_D)
    assert error(stream.states_BD, expected_BD) < ROUNDING[dtype]
    normed_BD = exact_norm(stream.states_BD, next_norm_D)
    assert error(stream.normed(), normed_BD) < ROUNDING[dtype]
    # what a fused matmul makes of the preparation: with the identity for a weight, the norm itself
    found_BD = nowhere(rows, hidden, dtype=dtype)
    matmul.fused_normed(stream, torch.eye(hidden, dtype=dtype, device=DEVICE), None, found_BD, TILES[0])
    assert error(found_BD, normed_BD) < ROUNDING[dtype]


def split_sums():
    """Zeros plus a matmul of three splits, whose sums are 1e8, -1e8 and 1 in the first row, twice that in the second
    and so on; there are two tiles of rows."""
    rows, hidden, inputs = 20, 32, 48
    norm_D = torch.ones(hidden, device=DEVICE)
    room = matmul.Room.make(rows, hidden, hidden, torch.float32, DEVICE)
    stream = matmul.begin(torch.zeros(rows, hidden, device=DEVICE), norm_D, EPSILON, room)
    inputs_BI = torch.zeros(rows, inputs, device=DEVICE)
    inputs_BI[:, [0, 16, 32]] = torch.tensor([1e8, -1e8, 1.0], device=DEVICE)
    inputs_BI *= torch.arange(1, rows + 1, device=DEVICE)[:, None]
    weight_DI = torch.ones(hidden, inputs, device=DEVICE)
    matmul.fused_residual(inputs_BI, weight_DI, None, stream, norm_D, Tile(16, 32, 16, splits=3))
    assert not room.arrivals.any()
    return stream.states_BD[:, 0].tolist()


def test_split_sums_are_added_from_the_first_to_the_last():
    assert split_sums() == list(range(1, 21))


@pytest.mark.skipif(torch.cuda.is_available(), reason="only the interpreter's programs arrive in an order of our own")
def test_the_order_of_split_sums_is_not_that_of_their_arrival(monkeypatch):
    """From the last to the first, 1 - 1e8 + 1e8 would be 0 in float32. The tiles of rows arrive in turns."""
    builder = interpreted.interpreter.interpreter_builder
    in_order, arrival = builder.set_grid_idx, [5, 2, 4, 1, 3, 0]
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: in_order(arrival[x] if x < 6 else x, y, z))
    assert split_sums() == list(range(1, 21))


@pytest.mark.parametrize("fused", list(itertools.product([False, True], repeat=4)), ids=str)
def test_fused_and_plain_matmuls_may_follow_each_other(fused):
    """Whoever comes next finds the norm prepared, whoever came before; the second layer has other norms."""
    rows, hidden, width = 3, 48, 40
    stream = begun(rows, hidden, 2 * width, torch.float32)
    states_BD, norm_D = stream.states_BD.double(), stream.norm_D
    square, wide = drawn(hidden, hidden, dtype=torch.float32), drawn(2 * width, hidden, dtype=torch.float32)
    narrow = drawn(hidden, width, dtype=torch.float32)
    heads_BD, hidden_BI = nowhere(rows, hidden, dtype=torch.float32), nowhere(rows, width, dtype=torch.float32)
    tile = Tile(16, 32, 32)
    for layer in range(2):
        norms = [drawn(hidden, dtype=torch.float32) + layer, drawn(hidden, dtype=torch.float32) - layer]
        if fused[0]:
            matmul.fused_normed(stream, square, None, heads_BD, tile)
        else:
            matmul.plain_normed(stream, square, None, heads_BD)
        stream = residual(fused[1], heads_BD, square, stream, norms[0], tile)
        if fused[2]:
            matmul.fused_normed(stream, wide, None, hidden_BI, tile, gated=True)
        else:
            matmul.plain_normed(stream, wide, None, hidden_BI, gated=True)
        stream = residual(fused[3], hidden_BI, narrow, stream, norms[1], tile)
        states_BD = states_BD + exact_matmul(exact_matmul(exact_norm(states_BD, norm_D), square, None), square, None)
        gate_BI, up_BI = exact_matmul(exact_norm(states_BD, norms[0]), wide, None).chunk(2, dim=1)
        states_BD = states_BD + exact_matmul(silu(gate_BI) * up_BI, narrow, None)
        norm_D = norms[1]
    assert error(stream.states_BD, states_BD) < 10 * ROUNDING[torch.float32]


def residual(is_fused, inputs, weight, stream, norm_D, tile):
    if is_fused:
        return matmul.fused_residual(inputs, weight, None, stream, norm_D, tile)
    return matmul.plain_residual(inputs, weight, None, stream, norm_D)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_the_matmuls_of_a_step_by_the_rule(dtype):
    """Half precision is fused for these shapes and float32 is not."""
    rows, hidden, width = 20, 64, 96
    stream = begun(rows, hidden, 2 * width, dtype)
    heads_BO, hidden_BI = nowhere(rows, width, dtype=dtype), nowhere(rows, width, dtype=dtype)
    weight_OD, bias_O = drawn(width, hidden, dtype=dtype), drawn(width, dtype=dtype)
    both_OD, both_bias_O = drawn(2 * width, hidden, dtype=dtype, scale=0.3), drawn(2 * width, dtype=dtype)
    down_DI, bias_D = drawn(hidden, width, dtype=dtype), drawn(hidden, dtype=dtype)
    matmul.normed_matmul(stream, weight_OD, bias_O, heads_BO)
    matmul.normed_matmul(stream, both_OD, both_bias_O, hidden_BI, gated=True)
    normed_BD = exact_norm(stream.states_BD, stream.norm_D)
    gate_BI, up_BI = exact_matmul(normed_BD, both_OD, both_bias_O).chunk(2, dim=1)
    assert error(heads_BO, exact_matmul(normed_BD, weight_OD, bias_O)) < ROUNDING[dtype]
    assert error(hidden_BI, silu(gate_BI) * up_BI) < 2 * ROUNDING[dtype]
    expected_BD = stream.states_BD.double() + exact_matmul(heads_BO, down_DI, bias_D)
    later = matmul.residual_matmul(heads_BO, down_DI, bias_D, stream, stream.norm_D)
    assert error(later.states_BD, expected_BD) < ROUNDING[dtype]
    assert later.is_normed == (dtype == torch.float32)


@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (576, 576), (1536, 576), (896, 1152), (4864, 896)])
def test_a_tile_of_the_rule_fits_the_kernels(inputs, outputs):
    for rows in range(1, 1100, 3):
        tiles = {
            kind: rule(rows, inputs, outputs, HALF)
            for kind, rule in (("normed", normed_tile), ("residual", residual_tile), ("gated", gated_tile))
        }
        assert tiles["normed"] is not None or rows > 256
        for kind, tile in tiles.items():
            if tile is None:
                continue
            fetched = tile.rows + tile.outputs * (2 if kind == "gated" else 1)
            assert fetched * tile.inputs * tile.stages * 2 <= 227_000  # bytes of shared memory of a processor
            assert inputs % tile.inputs == 0
            assert tile.splits == 1 or kind == "residual"
            if kind == "residual":
                assert tile.outputs >= matmul.COLUMNS
                tiles_in_all = tile.count(rows, outputs)
                assert tiles_in_all <= matmul.TILES
                assert tiles_in_all * tile.splits * tile.rows * tile.outputs <= matmul.SUMS


def test_large_matmuls_and_float32_are_left_to_cublas():
    assert normed_tile(256, 576, 49_152, HALF) is None
    assert gated_tile(256, 1536, 2 * 8960, HALF) is None
    assert residual_tile(512, 1536, 1536, HALF) is None
    assert residual_tile(16, 576, 576, torch.float32) is None


@pytest.mark.parametrize("shared", [232_448, 166_912, 101_376, 65_536])  # of Hopper, A100, consumer cards, Turing
def test_a_tile_is_cut_to_the_shared_memory_of_smaller_devices(shared):
    for rows, (inputs, outputs) in itertools.product((1, 16, 64, 256, 512), ((896, 9728), (576, 3072), (1536, 2048))):
        for matrices, rule in ((1, normed_tile), (1, residual_tile), (2, gated_tile)):
            tile = rule(rows, inputs, outputs, HALF)
            if tile is not None:
                cut = fitting(tile, matrices, shared)
                assert cut.stages >= 1
                assert (cut.rows + matrices * cut.outputs) * cut.inputs * 2 * cut.stages <= shared
                assert cut == tile or shared < 232_448

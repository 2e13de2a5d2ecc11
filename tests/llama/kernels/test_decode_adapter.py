"""Low-rank adapters beside a product, against the same in float64."""

import fixtures.interpreted  # noqa: F401  before triton
import pytest
import torch

from assay.llama.kernels import decode_adapter
from assay.llama.kernels.decode_adapter import Beside, add_low_rank, low_room


@pytest.mark.parametrize("inputs", [24, 1100])  # one share of the inputs, and several with a rest
@pytest.mark.parametrize("ranks", [[3], [5, 2], [8, 20, 1]])
@pytest.mark.parametrize("shared", [10**6, 5000])  # bytes: the second leaves 16 inputs at a time
def test_adapters_add_to_their_own_columns(inputs, ranks, shared, monkeypatch):
    monkeypatch.setattr(decode_adapter, "shared_memory", lambda device: shared)
    generator = torch.Generator().manual_seed(len(ranks))
    slots, widths, place, adapters = 18, [70, 9, 130], 4, []
    for rank, width in zip(ranks, widths, strict=False):
        down_RI, up_OR = torch.randn(rank, inputs, generator=generator), torch.randn(width, rank, generator=generator)
        adapters.append(Beside(place, place + width, down_RI / inputs**0.5, up_OR, 0.5 + place))
        place += width + 3  # columns between them that no adapter touches
    inputs_LI = torch.randn(slots, inputs, generator=generator)
    outputs_LO = torch.randn(slots, place, generator=generator)
    wanted_LO = outputs_LO.double()
    for one in adapters:
        low_LR = inputs_LI.double() @ one.down_RI.double().t()
        wanted_LO[:, one.first : one.last] += low_LR @ one.up_OR.double().t() * one.scale
    low = low_room(slots, [adapters, []], torch.device("cpu")).fill_(torch.nan)
    add_low_rank(inputs_LI, outputs_LO, adapters, low)
    torch.testing.assert_close(outputs_LO.double(), wanted_LO, rtol=1e-5, atol=2e-4)

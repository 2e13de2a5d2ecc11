"""The small kernels against the forward pass of the policy, whose numbers they must give."""

import fixtures.interpreted  # noqa: F401  before triton
import torch
from torch.nn.functional import silu

from assay.llama import forward
from assay.llama.kernels import decode_state as fields
from assay.llama.kernels.decode_small import add_norm, embed, gate


def test_norm():
    states_LD, weight_D = torch.randn(3, 20) * 5, torch.rand(20)
    normed_LD = torch.full((3, 20), torch.nan)
    add_norm(states_LD, None, weight_D, 1e-5, normed_LD)
    torch.testing.assert_close(normed_LD, forward.norm(states_LD, weight_D, 1e-5), rtol=0, atol=2e-6)


def test_addition_and_norm():
    states_LD, change_LD, weight_D = torch.randn(3, 20), torch.randn(3, 20), torch.rand(20)
    summed_LD, normed_LD = states_LD + change_LD, torch.full((3, 20), torch.nan)
    add_norm(states_LD, change_LD, weight_D, 1e-5, normed_LD)
    assert torch.equal(states_LD, summed_LD)
    torch.testing.assert_close(normed_LD, forward.norm(summed_LD, weight_D, 1e-5), rtol=0, atol=2e-6)


def test_gate():
    gate_up_LO, gated_LI = torch.randn(2, 2 * 1100) * 4, torch.full((2, 1100), torch.nan)
    gate(gate_up_LO, gated_LI)
    torch.testing.assert_close(gated_LI, silu(gate_up_LO[:, :1100]) * gate_up_LO[:, 1100:], rtol=1e-6, atol=1e-6)


def test_embedding():
    embedding_VD, states_LD = torch.randn(6, 20), torch.zeros(2, 20)
    state_LF = torch.zeros(2, fields.FIELDS.value, dtype=torch.int32)
    state_LF[:, fields.TOKEN.value] = torch.tensor([5, 2])
    embed(state_LF, embedding_VD, states_LD)
    assert torch.equal(states_LD, embedding_VD[[5, 2]])

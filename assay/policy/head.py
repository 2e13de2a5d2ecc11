"""Hidden states -> log-probs and entropies of tokens, without ever holding the logits of all tokens.

The head is computed a chunk of tokens at a time. For the backward pass only the states and two numbers a token are
kept; the logits of a chunk are made again and turned into their own gradient in place:

    z = logits / temperature;  d logprob / dz_v = [v is the target] - p_v;  d entropy / dz_v = -p_v (log p_v + entropy)

The gradient of the weights is added up over the chunks in float32, however the weights are kept, and rounded once.

Shape legend: N tokens, V vocabulary, D hidden size, K tokens of a support, R rank of an adapter; n, v: of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from assay.policy.family import Projection

CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**29}  # of logits at a time: large products, small beside the weights
FLOOR = -1e30  # in the place of -inf: 0 * -inf would be NaN


def token_numbers(
    states_ND: Tensor,
    head: Projection,
    targets_N: Tensor,
    support_NK: Tensor | None,
    *,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """(logprobs_N, entropy_N) at the temperature, in float32. Under a support only its tokens can be sampled; naming
    one twice does no harm. An entropy without gradient is only looked at."""
    weight_VD = head.weight_OI
    if head.low_rank is not None:
        # one product for both: inputs and their low-rank image side by side, and so the matrices
        adapter = head.low_rank
        low_NR = linear(states_ND.to(adapter.down_KI.dtype), adapter.down_KI)
        states_ND = torch.cat([states_ND, low_NR], dim=1)
        weight_VD = torch.cat([weight_VD, adapter.up_OK * adapter.scale], dim=1)
    logprobs_N, entropy_N = TokenNumbers.apply(  # type: ignore[no-untyped-call]
        states_ND, weight_VD, head.bias_O, targets_N, support_NK, temperature
    )
    return logprobs_N.float(), (entropy_N if entropy_gradient else entropy_N.detach()).float()


class TokenNumbers(torch.autograd.Function):
    """(logprobs_N, entropy_N) in float32, or in float64 if the states are."""

    @staticmethod
    def forward(
        ctx: Any,
        states_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        support_NK: Tensor | None,
        temperature: float,
    ) -> Any:
        exact = torch.promote_types(states_ND.dtype, torch.float32)
        logprobs_N, logsumexp_N, entropy_N = torch.empty(3, len(states_ND), dtype=exact, device=states_ND.device)
        for part in _chunks(states_ND, weight_VD):
            logits_nV = _logits(states_ND, weight_VD, bias_V, support_NK, part)
            numbers = _row_numbers(logits_nV, targets_N[part], temperature)
            logprobs_N[part], logsumexp_N[part], entropy_N[part] = numbers
        ctx.save_for_backward(states_ND, weight_VD, bias_V, targets_N, support_NK, logsumexp_N, entropy_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, dlogprobs_N: Tensor | None, dentropy_N: Tensor | None) -> Any:
        states_ND, weight_VD, bias_V, targets_N, support_NK, logsumexp_N, entropy_N = ctx.saved_tensors
        if dlogprobs_N is None:
            dlogprobs_N = torch.zeros_like(entropy_N)
        of_states, of_weight, of_bias = ctx.needs_input_grad[:3]
        dstates_ND = torch.zeros_like(states_ND) if of_states else None
        dweight_VD = torch.zeros_like(weight_VD, dtype=logsumexp_N.dtype) if of_weight else None
        dbias_V = torch.zeros_like(bias_V, dtype=logsumexp_N.dtype) if of_bias else None
        for part in _chunks(states_ND, weight_VD):
            logits_nV = _logits(states_ND, weight_VD, bias_V, support_NK, part)
            dlogits_nV = _gradient_of_logits(
                logits_nV, targets_N[part], logsumexp_N[part], entropy_N[part], dlogprobs_N[part],
                None if dentropy_N is None else dentropy_N[part], ctx.temperature,
            )  # fmt: skip
            if dstates_ND is not None:
                dstates_ND[part] = dlogits_nV @ weight_VD
            if dweight_VD is not None:
                _add_product(dweight_VD, dlogits_nV, states_ND[part])
            if dbias_V is not None:
                dbias_V += dlogits_nV.sum(0, dtype=dbias_V.dtype)
        return (
            dstates_ND,
            None if dweight_VD is None else dweight_VD.to(weight_VD.dtype),
            None if dbias_V is None else dbias_V.to(bias_V.dtype),
            None,
            None,
            None,
        )


def _chunks(states_ND: Tensor, weight_VD: Tensor) -> Iterator[slice]:
    # by the size of a row alone, never by the number of tokens: a token's chunk is computed in the same way then
    row_bytes = weight_VD.shape[0] * torch.promote_types(states_ND.dtype, weight_VD.dtype).itemsize
    size = max(CHUNK_BYTES.get(states_ND.device.type, 2**26) // row_bytes // 16 * 16, 16)
    for first in range(0, len(states_ND), size):
        yield slice(first, first + size)


def _logits(
    states_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, support_NK: Tensor | None, part: slice
) -> Tensor:
    """logits_nV, -inf outside of the support."""
    logits_nV = linear(states_ND[part], weight_VD, bias_V)
    if support_NK is None:
        return logits_nV
    refused_nV = torch.ones_like(logits_nV, dtype=torch.bool).scatter_(1, support_NK[part], False)
    return logits_nV.masked_fill_(refused_nV, -float("inf"))


def _fused(logits_nV: Tensor) -> bool:
    return logits_nV.is_cuda and logits_nV.dtype != torch.float64


def _row_numbers(logits_nV: Tensor, targets_n: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs_n, logsumexp_n, entropy_n); the logits are used up."""
    if _fused(logits_nV):
        from assay.kernels.logprob import row_numbers

        return row_numbers(logits_nV, targets_n, temperature)
    scaled_nV = _exact(logits_nV).div_(temperature)
    logsumexp_n = scaled_nV.logsumexp(1)
    log_shares_nV = scaled_nV.sub_(logsumexp_n.unsqueeze(1))
    logprobs_n = log_shares_nV.gather(1, targets_n.unsqueeze(1)).squeeze(1)
    shares_nV = log_shares_nV.exp()
    return logprobs_n, logsumexp_n, -shares_nV.mul_(log_shares_nV.clamp_(min=FLOOR)).sum(1)


def _gradient_of_logits(
    logits_nV: Tensor,
    targets_n: Tensor,
    logsumexp_n: Tensor,
    entropy_n: Tensor,
    dlogprobs_n: Tensor,
    dentropy_n: Tensor | None,
    temperature: float,
) -> Tensor:
    """dlogits_nV in the dtype of the logits, which are used up."""
    if _fused(logits_nV):
        from assay.kernels.logprob import logits_to_gradient

        logits_to_gradient(logits_nV, targets_n, logsumexp_n, entropy_n, dlogprobs_n, dentropy_n, temperature)
        return logits_nV
    log_shares_nV = _exact(logits_nV).div_(temperature).sub_(logsumexp_n.unsqueeze(1))
    targets_n1 = targets_n.unsqueeze(1)
    possible_n1 = log_shares_nV.gather(1, targets_n1) > -float("inf")
    if dentropy_n is None:
        gradients_nV = log_shares_nV.exp_().mul_(-dlogprobs_n.unsqueeze(1))
    else:
        slopes_nV = log_shares_nV.clamp(min=FLOOR).add_(entropy_n.unsqueeze(1)).mul_(dentropy_n.unsqueeze(1))
        gradients_nV = log_shares_nV.exp_().mul_(slopes_nV.add_(dlogprobs_n.unsqueeze(1)).neg_())
    gradients_nV.scatter_add_(1, targets_n1, dlogprobs_n.unsqueeze(1) * possible_n1)
    return gradients_nV.div_(temperature).to(logits_nV.dtype)


def _exact(logits_nV: Tensor) -> Tensor:
    return logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))


def _add_product(sums_VD: Tensor, dlogits_nV: Tensor, states_nD: Tensor) -> None:
    """sums += dlogits^T @ states, added up in the dtype of the sums."""
    if sums_VD.dtype == dlogits_nV.dtype == states_nD.dtype:
        sums_VD.addmm_(dlogits_nV.T, states_nD)
    elif dlogits_nV.is_cuda:
        torch.addmm(sums_VD, dlogits_nV.T, states_nD, out_dtype=sums_VD.dtype, out=sums_VD)
    else:
        sums_VD.addmm_(dlogits_nV.T.to(sums_VD.dtype), states_nD.to(sums_VD.dtype))

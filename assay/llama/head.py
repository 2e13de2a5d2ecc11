"""Hidden states -> log-probs and entropies of tokens, without ever holding the logits of all tokens.

The head is computed a chunk of tokens at a time. For the backward pass only the states and two numbers per token are
kept, and on a CPU the results of the first few chunks, because there a product is expensive and a little memory is not;
the logits of every other chunk are computed again. They are turned into their own gradient in place:

    z = logits / temperature;  d logprob / dz_v = [v is the target] - p_v;  d entropy / dz_v = -p_v (log p_v + entropy)

The gradient of the weights is added up over the chunks in float32, however the weights are kept, and rounded once.

Shape legend: N tokens, V vocabulary, D hidden size, K tokens of a support, R rank of an adapter; n, v: of one chunk;
r: a few rows of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from assay.llama.family import Projection
from assay.machine.device import as_current

CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**29}  # of logits at a time: large products, small beside the weights
KEPT_CHUNKS = 4  # on a CPU, of those of one call
ROWS_AT_A_TIME = 16  # of a chunk on a CPU: several passes over what its cache holds
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
    one twice does no harm. Without `entropy_gradient` the entropy keeps no graph."""
    weight_VD = head.weight_OI
    if head.low_rank is not None:
        # one product for both: inputs and their low-rank image side by side, and so the matrices
        adapter = head.low_rank
        low_NR = linear(states_ND.to(adapter.down_KI.dtype), adapter.down_KI)
        states_ND = torch.cat([states_ND, low_NR], dim=1)
        weight_VD = torch.cat([weight_VD, adapter.up_OK * adapter.scale], dim=1)
    with as_current(states_ND.device):
        logprobs_N, entropy_N = TokenNumbers.apply(  # type: ignore[no-untyped-call]
            states_ND, weight_VD, head.bias_O, targets_N, support_NK, temperature, torch.is_grad_enabled()
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
        keep: bool,
    ) -> Any:
        exact = torch.promote_types(states_ND.dtype, torch.float32)
        logprobs_N, logsumexp_N, entropy_N = torch.empty(3, len(states_ND), dtype=exact, device=states_ND.device)
        ctx.log_shares = {}
        for number, part in enumerate(_chunks(states_ND, weight_VD)):
            logits_nV = _logits(states_ND, weight_VD, bias_V, support_NK, part)
            if _uses_kernels(logits_nV):
                from assay.llama.kernels.logprob import row_numbers

                numbers = row_numbers(logits_nV, targets_N[part], temperature)
            else:
                log_shares_nV, numbers = _row_numbers(logits_nV, targets_N[part], temperature)
                if keep and number < KEPT_CHUNKS:
                    ctx.log_shares[number] = log_shares_nV
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
        for number, part in enumerate(_chunks(states_ND, weight_VD)):
            # a kept chunk is used up; a second backward pass makes it again
            log_shares_nV = ctx.log_shares.pop(number, None)
            logits_nV = None if log_shares_nV is not None else _logits(states_ND, weight_VD, bias_V, support_NK, part)
            of_rows = (
                targets_N[part], logsumexp_N[part], entropy_N[part], dlogprobs_N[part],
                None if dentropy_N is None else dentropy_N[part], ctx.temperature,
            )  # fmt: skip
            if logits_nV is not None and _uses_kernels(logits_nV):
                from assay.llama.kernels.logprob import logits_to_gradient

                logits_to_gradient(logits_nV, *of_rows)
                dlogits_nV = logits_nV
            else:
                dlogits_nV = _gradient_of_logits(logits_nV, log_shares_nV, *of_rows).to(states_ND.dtype)
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


def _uses_kernels(logits_nV: Tensor) -> bool:
    return logits_nV.is_cuda and logits_nV.dtype != torch.float64


def _row_numbers(
    logits_nV: Tensor, targets_n: Tensor, temperature: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """(log_shares_nV, (logprobs_n, logsumexp_n, entropy_n)); the logits are overwritten."""
    scaled_nV = _exact(logits_nV)
    logsumexp_n, entropy_n = scaled_nV.new_empty(2, len(scaled_nV))
    for rows in _few_rows(scaled_nV):
        scaled_rV = scaled_nV[rows]
        if temperature != 1:
            scaled_rV.div_(temperature)
        logsumexp_n[rows] = scaled_rV.logsumexp(1)
        shares_rV = scaled_rV.sub_(logsumexp_n[rows].unsqueeze(1)).exp()
        entropy_n[rows] = -shares_rV.mul_(scaled_rV.clamp(min=FLOOR)).sum(1)
    return scaled_nV, (scaled_nV.gather(1, targets_n.unsqueeze(1)).squeeze(1), logsumexp_n, entropy_n)


def _gradient_of_logits(
    logits_nV: Tensor | None,
    log_shares_nV: Tensor | None,
    targets_n: Tensor,
    logsumexp_n: Tensor,
    entropy_n: Tensor,
    dlogprobs_n: Tensor,
    dentropy_n: Tensor | None,
    temperature: float,
) -> Tensor:
    """dlogits_nV, from the logits or from the log-shares made of them, whichever is given; it is overwritten."""
    values_nV = log_shares_nV if logits_nV is None else _exact(logits_nV)
    assert values_nV is not None
    targets_n1, dlogprobs_n1 = targets_n.unsqueeze(1), dlogprobs_n.unsqueeze(1)
    for rows in _few_rows(values_nV):
        log_shares_rV, targets_r1, dlogprobs_r1 = values_nV[rows], targets_n1[rows], dlogprobs_n1[rows]
        if log_shares_nV is None:
            if temperature != 1:
                log_shares_rV.div_(temperature)
            log_shares_rV.sub_(logsumexp_n[rows].unsqueeze(1))
        possible_r1 = log_shares_rV.gather(1, targets_r1) > -float("inf")
        if dentropy_n is None:
            gradients_rV = log_shares_rV.exp_().mul_(-dlogprobs_r1)
        else:
            slopes_rV = log_shares_rV.clamp(min=FLOOR).add_(entropy_n[rows].unsqueeze(1))
            slopes_rV.mul_(dentropy_n[rows].unsqueeze(1))
            gradients_rV = log_shares_rV.exp_().mul_(slopes_rV.add_(dlogprobs_r1).neg_())
        gradients_rV.scatter_add_(1, targets_r1, dlogprobs_r1 * possible_r1)
        if temperature != 1:
            gradients_rV.div_(temperature)
    return values_nV


def _few_rows(values_nV: Tensor) -> Iterator[slice]:
    for first in range(0, len(values_nV), ROWS_AT_A_TIME):
        yield slice(first, first + ROWS_AT_A_TIME)


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

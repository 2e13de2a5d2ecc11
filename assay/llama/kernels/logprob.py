"""Rows of logits -> log-prob of a token, log of the sum of exponentials and entropy in one pass; and, in place, the
gradient of the logits.

With z = logits / temperature, p = softmax(z), L = log sum exp z and H the entropy:
    d logprob / dz_v = [v is the target] - p_v          dH / dz_v = -p_v (log p_v + H)

A logit of -inf is a token that cannot be sampled: it has no probability and no gradient.

Shape legend: N tokens, V vocabulary.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOOR = tl.constexpr(-1e30)  # in the place of -inf: 0 * -inf would be NaN, 0 * -1e30 is 0
BLOCK = 4096


def row_numbers(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs_N, logsumexp_N, entropy_N) in float32."""
    rows, width = logits_NV.shape
    targets_N = targets_N.contiguous()  # a column of rows is not
    logprobs_N = torch.empty(rows, dtype=torch.float32, device=logits_NV.device)
    logsumexp_N, entropy_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
    _numbers[(rows,)](
        logits_NV, targets_N, logprobs_N, logsumexp_N, entropy_N, width, logits_NV.stride(0), 1.0 / temperature,
        BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return logprobs_N, logsumexp_N, entropy_N


def logits_to_gradient(
    logits_NV: Tensor,
    targets_N: Tensor,
    logsumexp_N: Tensor,
    entropy_N: Tensor,
    dlogprobs_N: Tensor,
    dentropy_N: Tensor | None,
    temperature: float,
) -> None:
    """Overwrites the logits by the gradient of the logits."""
    rows, width = logits_NV.shape
    targets_N, logsumexp_N, entropy_N = targets_N.contiguous(), logsumexp_N.contiguous(), entropy_N.contiguous()
    dlogprobs_N = dlogprobs_N.contiguous()  # the gradient of a sum is one number, spread
    dentropy_N = None if dentropy_N is None else dentropy_N.contiguous()
    _gradient[(rows, triton.cdiv(width, BLOCK))](
        logits_NV, targets_N, logsumexp_N, entropy_N, dlogprobs_N, dlogprobs_N if dentropy_N is None else dentropy_N,
        width, logits_NV.stride(0), 1.0 / temperature, ENTROPY=dentropy_N is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


@triton.jit
def _numbers(
    logits, targets, logprobs, logsumexps, entropies, width, stride, inverse, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    start = logits + row.to(tl.int64) * stride
    # of each lane by itself: the greatest z so far, the sums of e^(z - greatest) and of e^(z - greatest) (z - greatest)
    greatest = tl.full((BLOCK,), FLOOR, dtype=tl.float32)
    summed = tl.zeros((BLOCK,), dtype=tl.float32)
    weighed = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, width, BLOCK):
        value = tl.load(start + first + columns, mask=first + columns < width, other=-float("inf")).to(tl.float32)
        value = tl.where(value == -float("inf"), FLOOR, value * inverse)
        higher = tl.where(value > greatest, value, greatest)
        fall = greatest - higher
        shrink = tl.exp(fall)
        distance = value - higher
        share = tl.exp(distance)
        weighed = (weighed + summed * fall) * shrink + share * distance
        summed = summed * shrink + share
        greatest = higher
    top = tl.max(greatest, 0)
    fall = greatest - top
    shrink = tl.exp(fall)
    total = tl.sum(summed * shrink, 0)
    mean = tl.sum((weighed + summed * fall) * shrink, 0) / total
    logsumexp = top + tl.log(total)
    target = tl.load(targets + row)
    logit = tl.load(start + target).to(tl.float32) * inverse
    tl.store(logprobs + row, logit - logsumexp)
    tl.store(logsumexps + row, logsumexp)
    tl.store(entropies + row, tl.log(total) - mean)


@triton.jit
def _gradient(
    logits, targets, logsumexps, entropies, dlogprobs, dentropies, width, stride, inverse,
    ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = logits + row.to(tl.int64) * stride + columns
    inside = columns < width
    logit = tl.load(place, mask=inside, other=-float("inf")).to(tl.float32)
    possible = logit != -float("inf")
    log_share = tl.where(possible, logit * inverse, FLOOR) - tl.load(logsumexps + row)
    share = tl.exp(log_share)
    weight = tl.load(dlogprobs + row)
    gradient = tl.where(columns == tl.load(targets + row), weight, 0.0) - weight * share
    if ENTROPY:
        gradient -= tl.load(dentropies + row) * share * (log_share + tl.load(entropies + row))
    gradient = tl.where(possible, gradient * inverse, 0.0)
    tl.store(place, gradient.to(logits.dtype.element_ty), mask=inside)

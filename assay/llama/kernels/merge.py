"""Joins two attentions of the same queries, over keys that have nothing in common, into the attention over all of them.

    L = log(e^L1 + e^L2);  output = e^(L1 - L) output1 + e^(L2 - L) output2

Shape legend: N tokens, H heads, W width of a head.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def merge(
    outputs_NHW: Tensor, logsumexp_HN: Tensor, others_NHW: Tensor, other_HN: Tensor, seen_N: Tensor
) -> tuple[Tensor, Tensor]:
    """(outputs_NHW, logsumexp_HN) of both attentions; of the first alone where `seen_N` says there is no second."""
    rows, heads, width = outputs_NHW.shape
    joint_NHW, joint_HN = torch.empty_like(outputs_NHW), torch.empty_like(logsumexp_HN)
    # never in place: several threads read a log-sum-exp, and one of them would write before another has read
    _merge[(rows,)](
        outputs_NHW, logsumexp_HN, others_NHW, other_HN, seen_N, joint_NHW, joint_HN, rows, heads, width,
        HEADS=triton.next_power_of_2(heads), WIDTH=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return joint_NHW, joint_HN


@triton.jit
def _merge(
    outputs, logsumexps, others, other_logsumexps, seen, joint, joint_logsumexps, rows, heads, width,
    HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.arange(0, HEADS)
    lane = tl.arange(0, WIDTH)[None, :]
    place = row.to(tl.int64) * heads * width + head[:, None] * width + lane
    inside = (head[:, None] < heads) & (lane < width)
    # as a number of heads: the interpreter of triton 3.9 takes no mask that was made from a single truth value
    heads_of_second = tl.where(tl.load(seen + row) != 0, heads, 0)
    first = tl.load(logsumexps + head * rows + row, mask=head < heads, other=0.0)
    second = tl.load(other_logsumexps + head * rows + row, mask=head < heads_of_second, other=-1e30)
    higher = tl.maximum(first, second)
    total = higher + tl.log(tl.exp(first - higher) + tl.exp(second - higher))
    tl.store(joint_logsumexps + head * rows + row, total, mask=head < heads)
    value = tl.load(outputs + place, mask=inside, other=0.0).to(tl.float32) * tl.exp(first - total)[:, None]
    inside_second = (head[:, None] < heads_of_second) & (lane < width)
    other = tl.load(others + place, mask=inside_second, other=0.0).to(tl.float32)
    value += other * tl.exp(second - total)[:, None]
    tl.store(joint + place, value.to(joint.dtype.element_ty), mask=inside)

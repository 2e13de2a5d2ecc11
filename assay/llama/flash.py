"""Attention over packed tokens through torch's flash attention kernels for sequences of different lengths.

Two calls: each segment sees itself up to each token; and the branches of a stem see the whole of the stem, whose keys
are so read once for all of them. The results are joined by their log-sum-exps. With the joint output and log-sum-exp,
the backward pass of either call gives exactly its share of the gradient: a probability is e^(score - log-sum-exp), and
all that a query knows of the other call's keys is in that number and in the output.

Shape legend: N tokens, H heads, K heads of keys, W width of a head, S segments, R runs of queries, M tokens of stems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

if TYPE_CHECKING:
    from assay.llama.packed import Segment

attend = torch.ops.aten._flash_attention_forward
attend_backward = torch.ops.aten._flash_attention_backward


@dataclass(frozen=True, slots=True, eq=False)
class Stems:
    """What branches see of their stems."""

    rows_M: Tensor  # the tokens of all stems that have branches
    queries_R: Tensor  # boundaries of runs of queries: tokens that see no stem, the branches of one, and so on
    keys_R: Tensor  # boundaries of their keys among the tokens of the stems; a run that sees no stem has none
    longest_run: int
    longest_stem: int
    seen_N: Tensor  # whether a token sees a stem
    back_N: Tensor  # the place of a token among those of the stems, or one beyond the last


@dataclass(frozen=True, slots=True, eq=False)
class Boundaries:
    """Boundaries of the segments, as the kernels want them."""

    segments_S: Tensor
    longest: int
    stems: Stems | None


def spans_of(trees: Sequence[Sequence[Segment]], device: torch.device) -> Boundaries:
    lengths = [segment.length for tree in trees for segment in tree]
    return Boundaries(_boundaries(lengths, device), _longest(lengths), _stems(trees, sum(lengths), device))


def _stems(trees: Sequence[Sequence[Segment]], tokens: int, device: torch.device) -> Stems | None:
    shared = [tree for tree in trees if len(tree) > 1]
    if not shared:
        return None
    runs, keys, end = [], [], 0
    seen_N, back_N = numpy.zeros(tokens, dtype=bool), numpy.zeros(tokens, dtype=numpy.int64)
    rows_M = numpy.concatenate([numpy.arange(tree[0].start, tree[0].end) for tree in shared])
    for tree in shared:
        runs += [tree[1].start - end, tree[-1].end - tree[1].start]
        keys += [0, tree[0].length]
        seen_N[tree[1].start : tree[-1].end] = True
        end = tree[-1].end
    runs.append(tokens - end)
    keys.append(0)
    back_N[:] = len(rows_M)
    back_N[rows_M] = numpy.arange(len(rows_M))
    return Stems(
        torch.from_numpy(rows_M).to(device),
        _boundaries(runs, device),
        _boundaries(keys, device),
        _longest(runs),
        _longest(keys),
        torch.from_numpy(seen_N).to(device),
        torch.from_numpy(back_N).to(device),
    )


def _boundaries(lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.from_numpy(numpy.cumsum([0, *lengths], dtype=numpy.int32)).to(device)


def _longest(lengths: Sequence[int]) -> int:
    # at least 2: where no run is longer than 1, the kernels take every run to be exactly 1
    return max(*lengths, 2)


def is_usable(queries_NHW: Tensor) -> bool:
    width = queries_NHW.shape[2]
    return (
        queries_NHW.is_cuda
        and queries_NHW.dtype in (torch.bfloat16, torch.float16)
        and width % 8 == 0
        and width <= 256
        and torch.cuda.get_device_capability(queries_NHW.device) >= (8, 0)
    )


def flash_attention(
    queries_NHW: Tensor, keys_NKW: Tensor, values_NKW: Tensor, spans: Boundaries, scale: float
) -> Tensor:
    """outputs_NHW"""
    return _Flash.apply(queries_NHW, keys_NKW, values_NKW, spans, scale)  # type: ignore[no-untyped-call, no-any-return]


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries_NHW: Tensor, keys_NKW: Tensor, values_NKW: Tensor, spans: Boundaries, scale: float
    ) -> Any:
        outputs_NHW, logsumexp_HN, *random, _ = attend(
            queries_NHW, keys_NKW, values_NKW, *_own(spans), 0.0, True, False, scale=scale
        )
        if spans.stems is not None:
            from assay.llama.kernels.merge import merge

            stem_keys, stem_values = (part.index_select(0, spans.stems.rows_M) for part in (keys_NKW, values_NKW))
            others_NHW, other_HN, *_ = attend(
                queries_NHW, stem_keys, stem_values, *_stem(spans.stems), 0.0, False, False, scale=scale
            )
            outputs_NHW, logsumexp_HN = merge(outputs_NHW, logsumexp_HN, others_NHW, other_HN, spans.stems.seen_N)
        ctx.save_for_backward(queries_NHW, keys_NKW, values_NKW, outputs_NHW, logsumexp_HN, *random)
        ctx.spans, ctx.scale = spans, scale
        return outputs_NHW

    @staticmethod
    def backward(ctx: Any, doutputs_NHW: Tensor) -> Any:
        queries_NHW, keys_NKW, values_NKW, outputs_NHW, logsumexp_HN, *random = ctx.saved_tensors
        doutputs_NHW, stems = doutputs_NHW.contiguous(), ctx.spans.stems
        dqueries_NHW, dkeys_NKW, dvalues_NKW = attend_backward(
            doutputs_NHW, queries_NHW, keys_NKW, values_NKW, outputs_NHW, logsumexp_HN,
            *_own(ctx.spans), 0.0, True, *random, scale=ctx.scale,
        )  # fmt: skip
        if stems is not None:
            stem_keys, stem_values = (part.index_select(0, stems.rows_M) for part in (keys_NKW, values_NKW))
            dothers_NHW, dstem_keys, dstem_values = attend_backward(
                doutputs_NHW, queries_NHW, stem_keys, stem_values, outputs_NHW, logsumexp_HN,
                *_stem(stems), 0.0, False, *random, scale=ctx.scale,
            )  # fmt: skip
            dqueries_NHW = dqueries_NHW + dothers_NHW
            dkeys_NKW = dkeys_NKW + _spread(dstem_keys, stems.back_N)
            dvalues_NKW = dvalues_NKW + _spread(dstem_values, stems.back_N)
        return dqueries_NHW, dkeys_NKW, dvalues_NKW, None, None


def _own(spans: Boundaries) -> tuple[Tensor, Tensor, int, int]:
    return spans.segments_S, spans.segments_S, spans.longest, spans.longest


def _stem(stems: Stems) -> tuple[Tensor, Tensor, int, int]:
    return stems.queries_R, stems.keys_R, stems.longest_run, stems.longest_stem


def _spread(gradients_MKW: Tensor, back_N: Tensor) -> Tensor:
    """Each token's own row, 0 for tokens outside of stems: a gather, whose sums have one order, unlike a scatter's."""
    return torch.cat([gradients_MKW, torch.zeros_like(gradients_MKW[:1])]).index_select(0, back_N)

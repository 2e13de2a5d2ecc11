"""Attention of trees (a stem and its branches) where no kernel for packed sequences is available.

A large tree is computed alone: its branches form a batch, each with the stem's keys before its own. They cost what they
see, where one mask over the whole tree would cost the square of it. Small trees are computed together under such masks:
there the number of calls is what costs.

Shape legend: S tokens of the tree, P of its stem, G branches of T tokens (padded to the longest), L = P + T, H heads,
K heads of keys, W width of a head; B trees, N tokens of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

SMALL_TREE = 128  # tokens


@dataclass(frozen=True, slots=True, eq=False)
class PaddedTrees:
    """Small trees as rows of one length."""

    places_BS: Tensor  # of their tokens among the N; any token in the place of padding
    back_N: Tensor
    seen_B1SS: Tensor
    masks: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Added to the products. Made once: from a boolean mask every layer would make and keep its own."""
        if dtype not in self.masks:
            zeros_B1SS = torch.zeros(self.seen_B1SS.shape, dtype=dtype, device=self.seen_B1SS.device)
            self.masks[dtype] = zeros_B1SS.masked_fill_(~self.seen_B1SS, -float("inf"))
        return self.masks[dtype]

    @classmethod
    def of(cls, trees: Sequence[Sequence[int]], device: torch.device) -> PaddedTrees | None:
        """From the lengths of the stem and the branches of each; None if there are not several, or one is not small."""
        sizes = [sum(lengths) for lengths in trees]
        longest = max(sizes)
        if len(trees) < 2 or longest > SMALL_TREE:
            return None
        segments_BS = np.full((len(trees), longest), -1)  # padding sees the stem: nothing would be NaN
        for row, lengths in zip(segments_BS, trees, strict=True):
            row[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
        inside_BS = segments_BS >= 0
        places_BS = np.where(inside_BS, np.cumsum(inside_BS).reshape(inside_BS.shape) - 1, 0)
        its_own_BSS = segments_BS[:, :, None] == segments_BS[:, None, :]
        of_the_stem_B1S = segments_BS[:, None, :] == 0
        seen_BSS = (its_own_BSS | of_the_stem_B1S) & np.tri(longest, dtype=bool)
        return cls(
            torch.from_numpy(places_BS).to(device),
            torch.from_numpy(np.flatnonzero(inside_BS)).to(device),
            torch.from_numpy(seen_BSS).to(device).unsqueeze(1),
        )


def padded_trees_attention(
    queries_NHW: Tensor, keys_NKW: Tensor, values_NKW: Tensor, trees: PaddedTrees, scale: float
) -> Tensor:
    """outputs_NHW"""
    count, longest = trees.places_BS.shape
    places = trees.places_BS.flatten()
    queries_BHSW, keys_BKSW, values_BKSW = (
        each.index_select(0, places).view(count, longest, *each.shape[1:]).transpose(1, 2)
        for each in (queries_NHW, keys_NKW, values_NKW)
    )
    outputs_BHSW = scaled_dot_product_attention(
        queries_BHSW,
        keys_BKSW,
        values_BKSW,
        attn_mask=trees.mask(queries_NHW.dtype),
        scale=scale,
        enable_gqa=queries_NHW.shape[1] != keys_NKW.shape[1],
    )
    return outputs_BHSW.transpose(1, 2).flatten(0, 1).index_select(0, trees.back_N)


def tree_attention(
    queries_SHW: Tensor,
    keys_SKW: Tensor,
    values_SKW: Tensor,
    lengths: Sequence[int],
    seen_TL: Tensor | None,
    scale: float,
) -> Tensor:
    """outputs_SHW. `lengths` are those of the stem and of each branch; `seen_TL` is the mask of the longest branch;
    None if there is no branch."""
    stem, *branches = lengths
    several = queries_SHW.shape[1] != keys_SKW.shape[1]
    queries_1HPW, keys_1KPW, values_1KPW = (
        each[:stem].transpose(0, 1).unsqueeze(0) for each in (queries_SHW, keys_SKW, values_SKW)
    )
    stem_1HPW = scaled_dot_product_attention(
        queries_1HPW,
        keys_1KPW,
        values_1KPW,
        is_causal=True,
        scale=scale,
        enable_gqa=several,
    )
    stem_PHW = stem_1HPW[0].transpose(0, 1)
    if not branches:
        return stem_PHW
    keys_GKLW, values_GKLW = (
        torch.cat([stem_1KPW.expand(len(branches), -1, -1, -1), _batch_branches(each[stem:], branches)], dim=2)
        for stem_1KPW, each in ((keys_1KPW, keys_SKW), (values_1KPW, values_SKW))
    )
    outputs_GHTW = scaled_dot_product_attention(
        _batch_branches(queries_SHW[stem:], branches),
        keys_GKLW,
        values_GKLW,
        attn_mask=seen_TL,
        scale=scale,
        enable_gqa=several,
    )
    return torch.cat([stem_PHW, _split_branches(outputs_GHTW, branches)])


def seen_by_a_branch(lengths: Sequence[int], device: torch.device) -> Tensor:
    """mask_TL of the longest branch: the whole stem, and the branch up to each token."""
    stem, *branches = lengths
    longest = max(branches)
    return torch.ones(longest, stem + longest, dtype=torch.bool, device=device).tril(diagonal=stem)


def _batch_branches(heads_SKW: Tensor, lengths: Sequence[int]) -> Tensor:
    """heads_GKTW of branches that follow each other; padding behind a short one is never seen."""
    longest = max(lengths)
    if min(lengths) == longest:
        return heads_SKW.reshape(len(lengths), longest, *heads_SKW.shape[1:]).transpose(1, 2)
    rows = [pad(row, (0, 0, 0, 0, 0, longest - len(row))) for row in torch.split(heads_SKW, list(lengths))]
    return torch.stack(rows).transpose(1, 2)


def _split_branches(outputs_GHTW: Tensor, lengths: Sequence[int]) -> Tensor:
    outputs_GTHW = outputs_GHTW.transpose(1, 2)
    if min(lengths) == max(lengths):
        return outputs_GTHW.flatten(0, 1)
    return torch.cat([row[:length] for row, length in zip(outputs_GTHW, lengths, strict=True)])

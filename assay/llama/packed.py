"""Sequences that follow each other without padding, and how their tokens see each other.

A segment is a run of tokens. Each of them sees its segment up to itself and, if the segment has a stem, the whole of
the stem: a prompt is a segment, each of its completions another one with the prompt as its stem.

Shape legend: N tokens, S tokens of one tree (a stem and its branches), H heads, K heads of keys, W width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from assay.llama.branches import PaddedTrees, padded_trees_attention, seen_by_a_branch, tree_attention
from assay.llama.flash import Boundaries, flash_attention, is_usable, spans_of


@dataclass(frozen=True, slots=True)
class Segment:
    """
    >>> Segment(3, 5, stem=0).length
    2
    """

    start: int
    end: int
    stem: int = -1  # number of the segment that is seen wholly; it has no stem itself and stands before; -1: none

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Packed:
    """Branches of a stem follow it directly."""

    ids_N: Tensor
    positions_N: Tensor  # of each token in its own sequence
    segments: tuple[Segment, ...]

    @classmethod
    def of_sequences(cls, sequences: Sequence[Sequence[int]], device: torch.device) -> Packed:
        """Sequences that do not see each other."""
        segments, start = [], 0
        for sequence in sequences:
            segments.append(Segment(start, start + len(sequence)))
            start += len(sequence)
        ids = [token for sequence in sequences for token in sequence]
        positions = [position for sequence in sequences for position in range(len(sequence))]
        return cls(torch.tensor(ids, device=device), torch.tensor(positions, device=device), tuple(segments))

    @cached_property
    def trees(self) -> tuple[tuple[Segment, ...], ...]:
        """Segments that see each other: a stem and its branches, or a segment alone."""
        trees: list[list[Segment]] = []
        for segment in self.segments:
            if segment.stem < 0:
                trees.append([segment])
            else:
                trees[-1].append(segment)
        return tuple(map(tuple, trees))

    @cached_property
    def sequences(self) -> tuple[tuple[Segment, ...], ...]:
        """Segments of each sequence, in order: a segment alone, or a stem and one of its branches."""
        return tuple(
            tree if len(tree) == 1 else (tree[0], branch)
            for tree in self.trees
            for branch in (tree if len(tree) == 1 else tree[1:])
        )

    def sequence(self, number: int) -> tuple[list[int], list[int]]:
        """(ids, positions) of a sequence."""
        ids_L, positions_L = (
            torch.cat([values_N[segment.start : segment.end] for segment in self.sequences[number]])
            for values_N in (self.ids_N, self.positions_N)
        )
        return ids_L.tolist(), positions_L.tolist()

    @cached_property
    def spans(self) -> Boundaries:
        """What the kernels need to know of the segments, made once for all layers."""
        return spans_of(self.trees, self.ids_N.device)

    def prepare(self) -> Boundaries:
        """Computes the spans now instead of at their first use."""
        return self.spans

    @cached_property
    def masks(self) -> tuple[Tensor | None, ...]:
        """Of each tree, mask_TL of what its longest branch sees; None for a segment alone."""
        return tuple(None if len(tree) == 1 else self._mask(tree) for tree in self.trees)

    @cached_property
    def padded(self) -> PaddedTrees | None:
        """All trees as one batch, where they are small."""
        return PaddedTrees.of([[segment.length for segment in tree] for tree in self.trees], self.ids_N.device)

    def _mask(self, tree: Sequence[Segment]) -> Tensor:
        return seen_by_a_branch([segment.length for segment in tree], self.ids_N.device)


def attention(queries_NHW: Tensor, keys_NKW: Tensor, values_NKW: Tensor, packed: Packed, scale: float) -> Tensor:
    """outputs_NHW: each token attends to what it sees."""
    if is_usable(queries_NHW):
        return flash_attention(queries_NHW, keys_NKW, values_NKW, packed.spans, scale)
    if packed.padded is not None:
        return padded_trees_attention(queries_NHW, keys_NKW, values_NKW, packed.padded, scale)
    outputs = []
    for tree, mask_TL in zip(packed.trees, packed.masks, strict=True):
        tokens, lengths = slice(tree[0].start, tree[-1].end), [segment.length for segment in tree]
        outputs.append(
            tree_attention(queries_NHW[tokens], keys_NKW[tokens], values_NKW[tokens], lengths, mask_TL, scale)
        )
    return torch.cat(outputs)

"""Sample[B] -> ModelInputs of a causal policy: rows of a prompt and its completions.

Shape legend: B completions, T completion tokens, R rows of a forward pass, S tokens of a row, K tokens of a support, N
completion tokens of all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from assay.policy.padding import Array, inside, pad_rows
from assay.types import ModelInputs, Sample

ROW_TOKENS = 2048  # a row shared under a mask is no longer than this: attention costs the square of it


class Sharing(IntEnum):
    """Whether completions of one prompt share a row."""

    NEVER = 0
    WHERE_IT_PAYS = 1  # under a mask of the whole row
    ALWAYS = 2  # packed: a token costs what it sees


@dataclass(frozen=True, slots=True)
class CausalPacking:
    device: torch.device
    sharing: Sharing = Sharing.NEVER
    window: int | None = None  # a pass with a longer sequence shares nothing

    @property
    def shares_prompts(self) -> bool:
        return self.sharing is not Sharing.NEVER

    @property
    def pads(self) -> bool:
        return self.sharing is not Sharing.ALWAYS

    def rows(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Neighbours with one prompt share a row; under a mask, where the prompt is long enough to pay."""
        return _rows(samples, self.sharing)

    def row_tokens(self, samples: Sequence[Sample]) -> int:
        return len(samples[0].prompt.tokens) + sum(len(sample.rollout.tokens) for sample in samples)

    def inputs(self, samples: Sequence[Sample]) -> ModelInputs:
        longest = max(self.row_tokens([sample]) for sample in samples)
        rows = _rows(samples, Sharing.NEVER if self.window is not None and longest > self.window else self.sharing)
        lengths_B = np.array([len(sample.rollout.tokens) for sample in samples])
        trees = [(len(samples[row[0]].prompt.tokens), *lengths_B[row].tolist()) for row in rows]
        inside_BT = inside(lengths_B)
        inside_RS = inside(np.array([sum(tree) for tree in trees]))
        width = inside_RS.shape[1]
        ids = chain.from_iterable(
            chain(samples[row[0]].prompt.tokens, *(samples[number].rollout.tokens for number in row)) for row in rows
        )
        positions, branches, predictors = [], [], []
        for row, (prompt, *completions) in enumerate(trees):
            positions += [np.arange(prompt), *(np.arange(prompt, prompt + length) for length in completions)]
            branches.append(np.repeat(np.arange(len(completions) + 1), (prompt, *completions)))
            first = row * width + prompt
            for length in completions:
                # output t - 1 predicts token t; completion token 0 is predicted by the prompt's last token
                outputs = np.arange(first - 1, first - 1 + length)
                outputs[0] = row * width + prompt - 1
                predictors.append(outputs)
                first += length
        targets = chain.from_iterable(sample.rollout.tokens for sample in samples)

        def tensor(array: Array) -> Tensor:
            return torch.from_numpy(array).to(self.device)

        return ModelInputs(
            trees=tuple(trees),
            lengths=tuple(lengths_B.tolist()),
            ids_RS=tensor(pad_rows(inside_RS, ids, np.int64)),
            positions_RS=tensor(pad_rows(inside_RS, np.concatenate(positions), np.int64)),
            branches_RS=tensor(pad_rows(inside_RS, np.concatenate(branches), np.int64, filler=-1))
            if len(rows) < len(samples)
            else None,
            predictors_BT=tensor(pad_rows(inside_BT, np.concatenate(predictors), np.int64, filler=-1)),
            targets_BT=tensor(pad_rows(inside_BT, targets, np.int64)),
            support_BTK=_supports(samples, self.device),
        )


def _rows(samples: Sequence[Sample], sharing: Sharing) -> list[list[int]]:
    if sharing is Sharing.NEVER:
        return [[number] for number in range(len(samples))]
    rows: list[list[int]] = []
    completions = 0  # tokens of them in the last row
    for number, sample in enumerate(samples):
        prompt, more = sample.prompt, len(sample.rollout.tokens)
        first = samples[rows[-1][0]].prompt if rows else None
        shares = first is not None and first.id == prompt.id and first.tokens == prompt.tokens
        if shares and sharing is not Sharing.ALWAYS:
            together, length = len(rows[-1]) + 1, len(prompt.tokens)
            shares = 2 * length * together >= completions + more and length + completions + more <= ROW_TOKENS
        if shares:
            rows[-1].append(number)
            completions += more
        else:
            rows.append([number])
            completions = more
    return rows


def _supports(samples: Sequence[Sample], device: torch.device) -> Tensor | None:
    """ids_BTK of the tokens each one was sampled among; a shorter list repeats its first."""
    if any(sample.rollout.support is None for sample in samples):
        return None
    supports = [sample.rollout.support or () for sample in samples]
    counts = np.array([len(among) for row in supports for among in row])
    inside_NK = inside(counts)
    flat_N = list(chain.from_iterable(supports))
    ids_NK = np.repeat(np.array([among[0] for among in flat_N])[:, None], inside_NK.shape[1], axis=1)
    ids_NK[inside_NK] = np.fromiter(chain.from_iterable(flat_N), np.int64, count=int(counts.sum()))
    inside_BT = inside(np.array(list(map(len, supports))))
    ids_BTK = np.zeros((*inside_BT.shape, inside_NK.shape[1]), np.int64)
    ids_BTK[inside_BT] = ids_NK
    return torch.from_numpy(ids_BTK).to(device)

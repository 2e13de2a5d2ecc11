"""Sample[N] -> Minibatch[M]: the only place where loss masks and padded tensors are made.

Masks are made by position and length, never by token value: padding may well be the id of EOS.
Shape legend: B rows, T completion tokens, L prompt + completion tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from assay.config import Config
from assay.train.randomness import derived_seed
from assay.types import Microbatch, Minibatch, Sample, Totals


def cut(samples: Sequence[Sample], config: Config, step: int, device: torch.device) -> tuple[Minibatch, ...]:
    """The samples of a step, shuffled and packed as the config says; the same whenever it is asked for again."""
    order = list(range(len(samples)))
    random.Random(derived_seed(config.run.seed, "shuffle", step)).shuffle(order)
    return pack(
        samples,
        order,
        minibatches=config.optimizer.minibatches,
        microbatches=config.optimizer.microbatches,
        max_tokens=config.rollout.max_tokens,
        device=device,
    )


def pack(
    samples: Sequence[Sample],
    order: Sequence[int],
    *,
    minibatches: int,
    microbatches: int,
    max_tokens: int,
    device: torch.device,
) -> tuple[Minibatch, ...]:
    """Cuts the samples, taken in `order`, into minibatches (one optimizer update each) of micro-batches.

    Counts that no cut divides evenly are spread: sizes differ by at most one. Fewer rows than cuts make fewer cuts.
    """
    rollout_tokens = sum(_loss_tokens(sample) for sample in samples)
    pieces = _cut(order, minibatches)
    packed = []
    for rows in pieces:
        totals = Totals(
            sequences=len(rows),
            tokens=sum(_loss_tokens(samples[row]) for row in rows),
            share_of_rollout_tokens=rollout_tokens / len(pieces),
            max_tokens=max_tokens,
        )
        packed.append(Minibatch(tuple(_tensors(samples, part, device) for part in _cut(rows, microbatches)), totals))
    return tuple(packed)


def _loss_tokens(sample: Sample) -> int:
    return len(sample.rollout.tokens) if sample.in_loss else 0


def _cut(rows: Sequence[int], pieces: int) -> list[Sequence[int]]:
    """Contiguous pieces, none empty."""
    pieces = min(pieces, len(rows))
    edges = [len(rows) * piece // pieces for piece in range(pieces + 1)] if rows else []
    return [rows[first:last] for first, last in pairwise(edges)]


def _tensors(samples: Sequence[Sample], rows: Sequence[int], device: torch.device) -> Microbatch:
    chosen = [samples[row] for row in rows]
    prompt_lengths_B1 = torch.tensor([[len(sample.prompt.tokens)] for sample in chosen])
    lengths_B1 = torch.tensor([[len(sample.rollout.tokens)] for sample in chosen])
    trained_B1 = torch.tensor([[sample.in_loss] for sample in chosen])
    token_1T = torch.arange(int(lengths_B1.max())).unsqueeze(0)
    inside_BT = token_1T < lengths_B1
    # output t - 1 predicts token t, so completion token 0 is predicted at the prompt's last token;
    # under the mask any valid index will do
    positions_BT = (prompt_lengths_B1 - 1 + token_1T).where(inside_BT, 0)
    return Microbatch(
        rows=tuple(rows),
        ids_BL=_padded([sample.prompt.tokens + sample.rollout.tokens for sample in chosen], torch.int64).to(device),
        positions_BT=positions_BT.to(device),
        targets_BT=_padded([sample.rollout.tokens for sample in chosen], torch.int64).to(device),
        mask_BT=(inside_BT & trained_B1).to(device),
        sampler_BT=_padded([sample.rollout.sampler_logprobs for sample in chosen], torch.float32).to(device),
        advantages_BT=_padded([_token_advantages(sample) for sample in chosen], torch.float32).to(device),
    )


def _token_advantages(sample: Sample) -> tuple[float, ...]:
    if isinstance(sample.advantage, tuple):
        return sample.advantage
    return (sample.advantage,) * len(sample.rollout.tokens)


def _padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([list(row) + [0] * (width - len(row)) for row in rows], dtype=dtype)

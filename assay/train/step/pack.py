"""Sample[N] -> Minibatch[M]: the only place where loss masks are made.

Masks are made by position and length, never by token value: padding may well be the id of EOS. How a forward pass is
laid out is the policy's part (policy/policy.py, Packing).
Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from assay.config import Config
from assay.policy.padding import Array, inside, pad_rows
from assay.policy.policy import Packing, Policy
from assay.train.randomness import derived_seed
from assay.types import Microbatch, Minibatch, Sample, Totals


def pack_step(samples: Sequence[Sample], config: Config, step: int, policy: Policy) -> tuple[Minibatch, ...]:
    """The samples of a step, shuffled and packed as the config says; the same whenever it is asked for again."""
    order = list(range(len(samples)))
    random.Random(derived_seed(config.run.seed, "shuffle", step)).shuffle(order)
    return pack_for_policy(policy, config, samples, order, minibatches=config.optimizer.minibatches)


def pack_for_policy(
    policy: Policy, config: Config, samples: Sequence[Sample], order: Sequence[int], *, minibatches: int
) -> tuple[Minibatch, ...]:
    """Packed as this policy computes best, in passes as the config says."""
    return pack_rows(
        samples,
        order,
        policy.packing(share_prompts=config.optimizer.share_prompts),
        minibatches=minibatches,
        microbatches=config.optimizer.microbatches,
        pass_tokens=config.optimizer.pass_tokens,
        max_tokens=config.rollout.max_tokens,
    )


def pack_rows(
    samples: Sequence[Sample],
    order: Sequence[int],
    packing: Packing,
    *,
    minibatches: int,
    microbatches: int,
    max_tokens: int,
    pass_tokens: int = 0,
) -> tuple[Minibatch, ...]:
    """Cuts the samples, taken in `order`, into minibatches (one optimizer update each) of micro-batches.

    Counts that no cut divides evenly are spread: sizes differ by at most one. Fewer rows than cuts make fewer cuts.
    With microbatches = 0, micro-batches have up to `pass_tokens` tokens (0: however many there are) and keep the
    completions of a prompt together as far as they fit.
    """
    rollout_tokens = sum(_loss_tokens(sample) for sample in samples)
    pieces = _pieces(order, minibatches)
    packed = []
    for rows in pieces:
        totals = Totals(
            sequences=len(rows),
            tokens=sum(_loss_tokens(samples[row]) for row in rows),
            share_of_rollout_tokens=rollout_tokens / len(pieces),
            max_tokens=max_tokens,
        )
        if packing.shares_prompts:  # the order inside an update does not matter: keep completions of a prompt together
            firsts: dict[str, int] = {}
            places = [firsts.setdefault(samples[row].prompt.id, place) for place, row in enumerate(rows)]
            rows = [rows[place] for place in sorted(range(len(rows)), key=lambda place: places[place])]
        parts = _pieces(rows, microbatches) if microbatches else _passes(samples, rows, packing, pass_tokens)
        packed.append(Minibatch(tuple(_microbatch(samples, part, packing) for part in parts), totals))
    return tuple(packed)


def _loss_tokens(sample: Sample) -> int:
    return len(sample.rollout.tokens) if sample.in_loss else 0


def _pieces(rows: Sequence[int], pieces: int) -> list[Sequence[int]]:
    """Contiguous pieces, none empty."""
    pieces = min(pieces, len(rows))
    edges = [len(rows) * piece // pieces for piece in range(pieces + 1)] if rows else []
    return [rows[first:last] for first, last in pairwise(edges)]


def _passes(samples: Sequence[Sample], rows: Sequence[int], packing: Packing, pass_tokens: int) -> list[list[int]]:
    """Samples in passes of up to `pass_tokens` tokens, padding included where there is any; one sample at least.
    Samples of one row that fit into a pass are not cut apart."""
    if not pass_tokens:
        return [list(rows)]
    passes: list[list[int]] = []
    count, tokens, widest = 0, 0, 0  # rows of the last pass, their tokens, the longest of them
    for row in packing.rows([samples[number] for number in rows]):
        for part in _parts([samples[rows[place]] for place in row], packing, pass_tokens):
            numbers = [rows[row[place]] for place in part]
            width = packing.row_tokens([samples[number] for number in numbers])
            cost = (count + 1) * max(widest, width) if packing.pads else tokens + width
            if passes and cost <= pass_tokens:
                passes[-1] += numbers
                count, tokens, widest = count + 1, tokens + width, max(widest, width)
            else:
                passes.append(numbers)
                count, tokens, widest = 1, width, width
    return passes


def _parts(row: Sequence[Sample], packing: Packing, pass_tokens: int) -> list[Sequence[int]]:
    """As few parts of a row as hold no more than `pass_tokens` tokens each, the prompt counted in every one."""
    pieces = 1
    while pieces < len(row):
        parts = _pieces(range(len(row)), pieces)
        if max(packing.row_tokens([row[place] for place in part]) for part in parts) <= pass_tokens:
            break
        pieces += 1
    return _pieces(range(len(row)), pieces)


def _microbatch(samples: Sequence[Sample], rows: Sequence[int], packing: Packing) -> Microbatch:
    chosen = [samples[row] for row in rows]
    lengths_B = np.array([len(sample.rollout.tokens) for sample in chosen])
    inside_BT = inside(lengths_B)
    trained_B1 = np.array([[sample.in_loss] for sample in chosen])
    sampler = chain.from_iterable(sample.rollout.sampler_logprobs for sample in chosen)

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(array).to(packing.device)

    return Microbatch(
        rows=tuple(rows),
        inputs=packing.inputs(chosen),
        mask_BT=tensor(inside_BT & trained_B1),
        sampler_BT=tensor(pad_rows(inside_BT, sampler, np.float32)),
        advantages_BT=tensor(pad_rows(inside_BT, _token_advantages(chosen, lengths_B), np.float32)),
    )


def _token_advantages(samples: Sequence[Sample], lengths: Array) -> Array | Iterable[float]:
    if any(isinstance(sample.advantage, tuple) for sample in samples):
        return chain.from_iterable(
            sample.advantage if isinstance(sample.advantage, tuple) else (sample.advantage,) * length
            for sample, length in zip(samples, lengths, strict=True)
        )
    return np.repeat(np.array([sample.advantage for sample in samples], np.float64), lengths)

"""Sample[N] -> Minibatch[M]: the only place where loss masks and padded tensors are made.

Masks are made by position and length, never by token value: padding may well be the id of EOS. Where the model allows
it, completions of one prompt share a row, so that their prompt is computed once.
Shape legend: B completions, T completion tokens, R rows of a forward pass, S tokens of a row, K tokens of a support.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.config import Config
from assay.llama.layout import fits_window
from assay.policy.causal import CausalPolicy
from assay.policy.probe import vocabulary_of
from assay.train.run.randomness import derived_seed
from assay.types import Microbatch, Minibatch, Prompt, Rollout, Sample, StopReason, Totals

ROW_TOKENS = 2048  # a row shared under a mask is no longer than this: attention costs the square of it
LOW_PRECISION = 0.02  # of a mean log-prob, between two ways to compute it in bfloat16; a wrong scale of attention: 3 %

Array = NDArray[Any]
Value = TypeVar("Value")


class Sharing(IntEnum):
    """Whether completions of one prompt share a row."""

    NEVER = 0
    WHERE_IT_PAYS = 1  # under a mask of the whole row
    ALWAYS = 2  # packed: a token costs what it sees


def cut(samples: Sequence[Sample], config: Config, step: int, policy: CausalPolicy) -> tuple[Minibatch, ...]:
    """The samples of a step, shuffled and packed as the config says; the same whenever it is asked for again."""
    order = list(range(len(samples)))
    random.Random(derived_seed(config.run.seed, "shuffle", step)).shuffle(order)
    return packed_for(policy, config, samples, order, minibatches=config.optimizer.minibatches)


def packed_for(
    policy: CausalPolicy, config: Config, samples: Sequence[Sample], order: Sequence[int], *, minibatches: int
) -> tuple[Minibatch, ...]:
    """Packed as this policy computes best, in passes as the config says."""
    return pack(
        samples,
        order,
        minibatches=minibatches,
        microbatches=config.optimizer.microbatches,
        pass_tokens=config.optimizer.pass_tokens,
        max_tokens=config.rollout.max_tokens,
        device=policy.device,
        share_prompts=sharing(config, policy),
        window=None if policy.family is None else policy.family.longest,
    )


def sharing(config: Config, policy: CausalPolicy) -> Sharing:
    if not config.optimizer.share_prompts:
        return Sharing.NEVER
    if policy.family is not None:
        return Sharing.ALWAYS
    return Sharing.WHERE_IT_PAYS if policy.abilities.sharing else Sharing.NEVER


def with_confirmed_sharing(policy: CausalPolicy, prompt: Prompt, max_tokens: int) -> CausalPolicy:
    """Looks at the short cuts again, at the length of a real prompt and completion: a window of attention, for one,
    shows only beyond its size. A policy whose numbers differ there does without."""
    if policy.family is None and not policy.abilities.sharing:
        return policy
    with torch.no_grad():
        length = max(min(max_tokens, (ROW_TOKENS - len(prompt.tokens)) // 2), 1)
        source = torch.Generator().manual_seed(0)
        samples = [
            Sample(prompt, Rollout(prompt.id, tuple(row), (0.0,) * length, StopReason.LENGTH, 0, ""), 0.0, in_loss=True)
            for row in torch.randint(vocabulary_of(policy), (2, length), generator=source).tolist()
        ]
        alone, shared = (_tensors(samples, range(2), policy.device, how) for how in (Sharing.NEVER, Sharing.ALWAYS))
        portable = replace(policy, family=None)
        alone_BT = portable.logprobs(alone)[0]

        def is_sound(one: CausalPolicy) -> bool:
            off_BT = (alone_BT - one.logprobs(shared)[0]).abs()
            if not any(parameter.dtype == torch.bfloat16 for parameter in policy.model.parameters()):
                return float(off_BT.max()) <= 1e-3
            # In bfloat16 single tokens are off by rounding alone; so is their mean where other kernels computed. These
            # tokens are drawn blindly, and what is unlikely is the most inexact: of SmolLM2's -14, 0.5 % on average.
            bound = 0.05 if one.family is None else LOW_PRECISION * float(alone_BT.abs().mean())
            return float(off_BT.mean()) <= bound

        family = policy.family
        if family is not None and fits_window(family, shared) and not is_sound(policy):
            family = None
            policy.say(
                f"{type(policy.model).__name__} is decoded and trained by the portable path, slowly, because at the "
                "length of a real prompt its numbers are not those of the Llama family"
            )
        shares = policy.abilities.sharing and (family is not None or is_sound(portable))
    return replace(policy, family=family, abilities=replace(policy.abilities, sharing=shares))


def pack(
    samples: Sequence[Sample],
    order: Sequence[int],
    *,
    minibatches: int,
    microbatches: int,
    max_tokens: int,
    device: torch.device,
    share_prompts: int = Sharing.NEVER,
    window: int | None = None,
    pass_tokens: int = 0,
) -> tuple[Minibatch, ...]:
    """Cuts the samples, taken in `order`, into minibatches (one optimizer update each) of micro-batches.

    Counts that no cut divides evenly are spread: sizes differ by at most one. Fewer rows than cuts make fewer cuts.
    With microbatches = 0, micro-batches have up to `pass_tokens` tokens (0: however many there are) and keep the
    completions of a prompt together as far as they fit. A micro-batch with a sequence longer than `window` shares
    nothing.
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
        if share_prompts:  # the order inside an update does not matter: bring the completions of a prompt together
            firsts: dict[str, int] = {}
            places = [firsts.setdefault(samples[row].prompt.id, place) for place, row in enumerate(rows)]
            rows = [rows[place] for place in sorted(range(len(rows)), key=lambda place: places[place])]
        parts = _cut(rows, microbatches) if microbatches else _passes(samples, rows, share_prompts, pass_tokens)
        packed.append(
            Minibatch(
                tuple(_tensors(samples, part, device, _within(window, samples, part, share_prompts)) for part in parts),
                totals,
            )
        )
    return tuple(packed)


def _loss_tokens(sample: Sample) -> int:
    return len(sample.rollout.tokens) if sample.in_loss else 0


def _cut(rows: Sequence[int], pieces: int) -> list[Sequence[int]]:
    """Contiguous pieces, none empty."""
    pieces = min(pieces, len(rows))
    edges = [len(rows) * piece // pieces for piece in range(pieces + 1)] if rows else []
    return [rows[first:last] for first, last in pairwise(edges)]


def _passes(samples: Sequence[Sample], rows: Sequence[int], share_prompts: int, pass_tokens: int) -> list[list[int]]:
    """Rows in passes of up to `pass_tokens` tokens, padding included where there is any; one row at least. A group that
    would fit into a pass is not cut."""
    if not pass_tokens:
        return [list(rows)]
    passes: list[list[int]] = []
    trees, tokens, widest = 0, 0, 0  # of the last pass
    for tree in _trees([samples[row] for row in rows], share_prompts):
        for part in _parts([samples[rows[number]] for number in tree], pass_tokens):
            one = [rows[tree[number]] for number in part]
            width = _tokens_of([samples[row] for row in one])
            packed = tokens + width
            padded = (trees + 1) * max(widest, width)
            if passes and (packed if share_prompts == Sharing.ALWAYS else padded) <= pass_tokens:
                passes[-1] += one
                trees, tokens, widest = trees + 1, packed, max(widest, width)
            else:
                passes.append(one)
                trees, tokens, widest = 1, width, width
    return passes


def _parts(tree: Sequence[Sample], pass_tokens: int) -> list[Sequence[int]]:
    """As few parts of a tree as hold no more than `pass_tokens` tokens each, the prompt counted in every one."""
    pieces = 1
    while pieces < len(tree):
        parts = _cut(range(len(tree)), pieces)
        if max(_tokens_of([tree[number] for number in part]) for part in parts) <= pass_tokens:
            break
        pieces += 1
    return _cut(range(len(tree)), pieces)


def _within(window: int | None, samples: Sequence[Sample], rows: Sequence[int], share_prompts: int) -> int:
    longest = max(_tokens_of([samples[row]]) for row in rows)
    return Sharing.NEVER if window is not None and longest > window else share_prompts


def _tensors(samples: Sequence[Sample], rows: Sequence[int], device: torch.device, share_prompts: int) -> Microbatch:
    chosen = [samples[row] for row in rows]
    trees = _trees(chosen, share_prompts)
    lengths_B = np.array([len(sample.rollout.tokens) for sample in chosen])
    shapes = [(len(chosen[tree[0]].prompt.tokens), *lengths_B[tree].tolist()) for tree in trees]
    inside_BT = _inside(lengths_B)
    inside_RS = _inside(np.array([sum(shape) for shape in shapes]))
    width = inside_RS.shape[1]
    ids = chain.from_iterable(
        chain(chosen[tree[0]].prompt.tokens, *(chosen[number].rollout.tokens for number in tree)) for tree in trees
    )
    positions, branches, predictors = [], [], []
    for row, (prompt, *completions) in enumerate(shapes):
        positions += [np.arange(prompt), *(np.arange(prompt, prompt + length) for length in completions)]
        branches.append(np.repeat(np.arange(len(completions) + 1), (prompt, *completions)))
        first = row * width + prompt
        for length in completions:
            # output t - 1 predicts token t; completion token 0 is predicted by the prompt's last token
            outputs = np.arange(first - 1, first - 1 + length)
            outputs[0] = row * width + prompt - 1
            predictors.append(outputs)
            first += length
    trained_B1 = np.array([[sample.in_loss] for sample in chosen])

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Microbatch(
        rows=tuple(rows),
        trees=tuple(shapes),
        lengths=tuple(lengths_B.tolist()),
        ids_RS=tensor(_filled(inside_RS, ids, np.int64)),
        positions_RS=tensor(_filled(inside_RS, np.concatenate(positions), np.int64)),
        branches_RS=tensor(_filled(inside_RS, np.concatenate(branches), np.int64, filler=-1))
        if len(trees) < len(chosen)
        else None,
        predictors_BT=tensor(_filled(inside_BT, np.concatenate(predictors), np.int64, filler=-1)),
        targets_BT=tensor(_filled(inside_BT, _flat(sample.rollout.tokens for sample in chosen), np.int64)),
        support_BTK=_supports(chosen, device),
        mask_BT=tensor(inside_BT & trained_B1),
        sampler_BT=tensor(_filled(inside_BT, _flat(sample.rollout.sampler_logprobs for sample in chosen), np.float32)),
        advantages_BT=tensor(_filled(inside_BT, _token_advantages(chosen, lengths_B), np.float32)),
    )


def _trees(samples: Sequence[Sample], share_prompts: int) -> list[list[int]]:
    """Which samples share a row: neighbours with one prompt; under a mask, where the prompt is long enough to pay."""
    if not share_prompts:
        return [[number] for number in range(len(samples))]
    trees: list[list[int]] = []
    completions = 0  # tokens of them in the last tree
    for number, sample in enumerate(samples):
        prompt, more = sample.prompt, len(sample.rollout.tokens)
        first = samples[trees[-1][0]].prompt if trees else None
        shares = first is not None and first.id == prompt.id and first.tokens == prompt.tokens
        if shares and share_prompts != Sharing.ALWAYS:
            together, length = len(trees[-1]) + 1, len(prompt.tokens)
            shares = 2 * length * together >= completions + more and length + completions + more <= ROW_TOKENS
        if shares:
            trees[-1].append(number)
            completions += more
        else:
            trees.append([number])
            completions = more
    return trees


def _tokens_of(tree: Sequence[Sample]) -> int:
    return len(tree[0].prompt.tokens) + sum(len(sample.rollout.tokens) for sample in tree)


def _inside(lengths: Array) -> Array:
    """Of rows of these lengths padded to the longest, what is no padding."""
    inside: Array = np.arange(lengths.max()) < lengths[:, None]
    return inside


def _filled(inside: Array, values: Iterable[float] | Array, dtype: Any, filler: int = 0) -> Array:
    """Values one behind the other, laid into the places inside."""
    if not isinstance(values, np.ndarray):
        values = np.fromiter(values, np.float64 if dtype is np.float32 else dtype, count=int(inside.sum()))
    with np.errstate(over="ignore"):  # what no float32 can hold becomes infinite, and the update says so
        filled = np.full(inside.shape, filler, dtype)
        filled[inside] = values
    return filled


def _flat(rows: Iterable[Iterable[Value]]) -> Iterable[Value]:
    return chain.from_iterable(rows)


def _token_advantages(samples: Sequence[Sample], lengths: Array) -> Array | Iterable[float]:
    if any(isinstance(sample.advantage, tuple) for sample in samples):
        return _flat(
            sample.advantage if isinstance(sample.advantage, tuple) else (sample.advantage,) * length
            for sample, length in zip(samples, lengths, strict=True)
        )
    return np.repeat(np.array([sample.advantage for sample in samples], np.float64), lengths)


def _supports(samples: Sequence[Sample], device: torch.device) -> Tensor | None:
    """ids_BTK of the tokens each one was sampled among; a shorter list repeats its first."""
    if any(sample.rollout.support is None for sample in samples):
        return None
    supports = [sample.rollout.support or () for sample in samples]
    counts = np.array([len(among) for row in supports for among in row])
    inside_NK = _inside(counts)
    flat_N = list(_flat(supports))
    ids_NK = np.repeat(np.array([among[0] for among in flat_N])[:, None], inside_NK.shape[1], axis=1)
    ids_NK[inside_NK] = np.fromiter(_flat(flat_N), np.int64, count=int(counts.sum()))
    inside_BT = _inside(np.array(list(map(len, supports))))
    ids_BTK = np.zeros((*inside_BT.shape, inside_NK.shape[1]), np.int64)
    ids_BTK[inside_BT] = ids_NK
    return torch.from_numpy(ids_BTK).to(device)

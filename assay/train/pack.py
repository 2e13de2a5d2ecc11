"""Sample[N] -> Minibatch[M]: the only place where loss masks and padded tensors are made.

Masks are made by position and length, never by token value: padding may well be the id of EOS. Where the model allows
it, completions of one prompt share a row, so that their prompt is computed once.
Shape legend: B completions, T completion tokens, R rows of a forward pass, S tokens of a row, K tokens of a support.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from assay.config import Config
from assay.policy.causal import CausalPolicy
from assay.policy.probe import vocabulary_of
from assay.train.randomness import derived_seed
from assay.types import Microbatch, Minibatch, Prompt, Rollout, Sample, StopReason, Totals

ROW_TOKENS = 2048  # a shared row is no longer than this: attention costs the square of it


def cut(samples: Sequence[Sample], config: Config, step: int, policy: CausalPolicy) -> tuple[Minibatch, ...]:
    """The samples of a step, shuffled and packed as the config says; the same whenever it is asked for again."""
    order = list(range(len(samples)))
    random.Random(derived_seed(config.run.seed, "shuffle", step)).shuffle(order)
    return pack(
        samples,
        order,
        minibatches=config.optimizer.minibatches,
        microbatches=config.optimizer.microbatches,
        max_tokens=config.rollout.max_tokens,
        device=policy.device,
        share_prompts=shares_prompts(config, policy),
    )


def shares_prompts(config: Config, policy: CausalPolicy) -> bool:
    return config.optimizer.share_prompts and policy.abilities.sharing


def with_confirmed_sharing(policy: CausalPolicy, prompt: Prompt, max_tokens: int) -> CausalPolicy:
    """Looks at sharing again, at the length of a real prompt and completion: a window of attention, for one, shows only
    beyond its size. A policy whose numbers differ there does without."""
    if not policy.abilities.sharing:
        return policy
    with torch.no_grad():
        length = max(min(max_tokens, (ROW_TOKENS - len(prompt.tokens)) // 2), 1)
        source = torch.Generator().manual_seed(0)
        samples = [
            Sample(prompt, Rollout(prompt.id, tuple(row), (0.0,) * length, StopReason.LENGTH, 0, ""), 0.0, in_loss=True)
            for row in torch.randint(vocabulary_of(policy), (2, length), generator=source).tolist()
        ]
        alone_BT, shared_BT = (
            policy.logprobs(_tensors(samples, range(2), policy.device, share_prompts=shared))[0]
            for shared in (False, True)
        )
    off_BT = (alone_BT - shared_BT).abs()
    low_precision = any(parameter.dtype == torch.bfloat16 for parameter in policy.model.parameters())
    # in bfloat16 single tokens are off by rounding alone
    is_sound = float(off_BT.mean()) <= 0.05 if low_precision else float(off_BT.max()) <= 1e-3
    return replace(policy, abilities=replace(policy.abilities, sharing=is_sound))


def pack(
    samples: Sequence[Sample],
    order: Sequence[int],
    *,
    minibatches: int,
    microbatches: int,
    max_tokens: int,
    device: torch.device,
    share_prompts: bool = False,
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
        if share_prompts:  # the order inside an update does not matter: bring the completions of a prompt together
            firsts: dict[str, int] = {}
            places = [firsts.setdefault(samples[row].prompt.id, place) for place, row in enumerate(rows)]
            rows = [rows[place] for place in sorted(range(len(rows)), key=lambda place: places[place])]
        parts = [_tensors(samples, part, device, share_prompts) for part in _cut(rows, microbatches)]
        packed.append(Minibatch(tuple(parts), totals))
    return tuple(packed)


def _loss_tokens(sample: Sample) -> int:
    return len(sample.rollout.tokens) if sample.in_loss else 0


def _cut(rows: Sequence[int], pieces: int) -> list[Sequence[int]]:
    """Contiguous pieces, none empty."""
    pieces = min(pieces, len(rows))
    edges = [len(rows) * piece // pieces for piece in range(pieces + 1)] if rows else []
    return [rows[first:last] for first, last in pairwise(edges)]


def _tensors(samples: Sequence[Sample], rows: Sequence[int], device: torch.device, share_prompts: bool) -> Microbatch:
    chosen = [samples[row] for row in rows]
    families = _families(chosen) if share_prompts else [[number] for number in range(len(chosen))]
    width = max(_row_tokens([chosen[number] for number in family]) for family in families)
    ids, positions, branches = [], [], []
    predictors: dict[int, list[int]] = {}
    for row, family in enumerate(families):
        prompt = chosen[family[0]].prompt.tokens
        row_ids, row_positions, row_branches = list(prompt), list(range(len(prompt))), [0] * len(prompt)
        for branch, number in enumerate(family, start=1):
            tokens = chosen[number].rollout.tokens
            first = row * width + len(row_ids)
            # output t - 1 predicts token t; completion token 0 is predicted by the prompt's last token
            predictors[number] = [row * width + len(prompt) - 1, *range(first, first + len(tokens) - 1)]
            row_ids += tokens
            row_positions += range(len(prompt), len(prompt) + len(tokens))
            row_branches += [branch] * len(tokens)
        ids.append(row_ids)
        positions.append(row_positions)
        branches.append(row_branches)
    lengths_B1 = torch.tensor([[len(sample.rollout.tokens)] for sample in chosen])
    trained_B1 = torch.tensor([[sample.in_loss] for sample in chosen])
    inside_BT = torch.arange(int(lengths_B1.max())).unsqueeze(0) < lengths_B1
    shared = len(families) < len(chosen)
    return Microbatch(
        rows=tuple(rows),
        ids_RS=_padded(ids, torch.int64).to(device),
        positions_RS=_padded(positions, torch.int64).to(device),
        branches_RS=_padded(branches, torch.int64, filler=-1).to(device) if shared else None,
        predictors_BT=_padded([predictors[number] for number in range(len(chosen))], torch.int64, filler=-1).to(device),
        targets_BT=_padded([sample.rollout.tokens for sample in chosen], torch.int64).to(device),
        support_BTK=_supports(chosen, device),
        mask_BT=(inside_BT & trained_B1).to(device),
        sampler_BT=_padded([sample.rollout.sampler_logprobs for sample in chosen], torch.float32).to(device),
        advantages_BT=_padded([_token_advantages(sample) for sample in chosen], torch.float32).to(device),
    )


def _families(samples: Sequence[Sample]) -> list[list[int]]:
    """Which samples share a row: neighbours with one prompt, where the prompt is long enough to be worth it."""
    families: list[list[int]] = []
    for number, sample in enumerate(samples):
        together = [samples[other] for other in families[-1]] + [sample] if families else [sample]
        same_prompt = together[0].prompt.id == sample.prompt.id and together[0].prompt.tokens == sample.prompt.tokens
        prompt, completions = len(sample.prompt.tokens), sum(len(one.rollout.tokens) for one in together)
        worth_it = 2 * prompt * len(together) >= completions and prompt + completions <= ROW_TOKENS
        if families and same_prompt and worth_it:
            families[-1].append(number)
        else:
            families.append([number])
    return families


def _row_tokens(family: Sequence[Sample]) -> int:
    return len(family[0].prompt.tokens) + sum(len(sample.rollout.tokens) for sample in family)


def _supports(samples: Sequence[Sample], device: torch.device) -> Tensor | None:
    """ids_BTK of the tokens each one was sampled among; a shorter list repeats its first."""
    if any(sample.rollout.support is None for sample in samples):
        return None
    supports = [sample.rollout.support or () for sample in samples]
    width, most = max(map(len, supports)), max(len(among) for row in supports for among in row)
    return torch.tensor(
        [
            [list(among) + [among[0]] * (most - len(among)) for among in row] + [[0] * most] * (width - len(row))
            for row in supports
        ],
        device=device,
    )


def _token_advantages(sample: Sample) -> tuple[float, ...]:
    if isinstance(sample.advantage, tuple):
        return sample.advantage
    return (sample.advantage,) * len(sample.rollout.tokens)


def _padded(rows: Sequence[Sequence[float]], dtype: torch.dtype, filler: int = 0) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([list(row) + [filler] * (width - len(row)) for row in rows], dtype=dtype)

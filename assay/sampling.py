"""How a token is drawn, on every path: one random number per token, and the first token whose cumulated probability is
above it. So what a rollout draws depends on its own random numbers and not on what is decoded beside it.

The vocabulary is read twice: for its softmax and for the sums of its blocks. Only the chosen block is cumulated, in
float64. Log-probs are float32 and belong to the distribution that was drawn from; they are NaN where the logits give
no finite probabilities.

Shape legend: N rows, V vocabulary, K tokens of a support, B blocks of the vocabulary, W weights to choose among.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from assay.config.sections import RolloutConfig

BLOCK = 256  # tokens; about the square root of a vocabulary
# probabilities that exist at a time; on a CPU so few that they stay in its cache, and in memory the system has cleared
NUMBERS_AT_A_TIME = {"cpu": 2**20, "cuda": 2**24}


@dataclass(frozen=True, slots=True)
class Drawn:
    tokens_N: Tensor
    logprobs_N: Tensor  # float32
    support_NK: Tensor | None  # the tokens each was drawn among, where that is not the whole vocabulary

    def of_rows(self, rows: Tensor) -> Drawn:
        support_NK = None if self.support_NK is None else self.support_NK[rows]
        return Drawn(self.tokens_N[rows], self.logprobs_N[rows], support_NK)


def draw(logits_NV: Tensor, uniforms_N: Tensor | None, temperature: float, settings: RolloutConfig) -> Drawn:
    """The next token of every row; without random numbers the likeliest one, whatever the support."""
    if uniforms_N is not None and settings.top_k:
        return _among_few(logits_NV, uniforms_N, temperature, settings)
    at_a_time = NUMBERS_AT_A_TIME.get(logits_NV.device.type, 2**24)
    count = min(-(-logits_NV.numel() // at_a_time), len(logits_NV))
    uniforms = [None] * count if uniforms_N is None else uniforms_N.tensor_split(count)
    parts = [
        _among_all(logits_nV.float(), uniforms_n, temperature)
        for logits_nV, uniforms_n in zip(logits_NV.tensor_split(count), uniforms, strict=True)
    ]
    tokens, logprobs = zip(*parts, strict=True)
    return Drawn(torch.cat(tokens), torch.cat(logprobs), None)


def _among_all(logits_NV: Tensor, uniforms_N: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    rows, vocabulary = logits_NV.shape
    shares_NV = (logits_NV if temperature == 1 else logits_NV / temperature).softmax(dim=1)
    whole = vocabulary // BLOCK * BLOCK
    sums_NB = shares_NV[:, :whole].view(rows, -1, BLOCK).sum(dim=2)
    if whole < vocabulary:
        sums_NB = torch.cat([sums_NB, shares_NV[:, whole:].sum(dim=1, keepdim=True)], dim=1)
    sums_NB = sums_NB.double()
    # softmax adds up the vocabulary in float32 and is off by 1e-5: the shares do not add up to 1
    totals_N = sums_NB.sum(dim=1)
    if uniforms_N is None:
        tokens_N = logits_NV.argmax(dim=1)
    else:
        targets_N = uniforms_N.double() * totals_N
        blocks_N, before_N = _first_above(sums_NB, targets_N)
        ids_NW = blocks_N.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=blocks_N.device)
        chosen_NW = shares_NV.gather(1, ids_NW.clamp(max=vocabulary - 1)).double()
        places_N, _ = _first_above(chosen_NW.masked_fill(ids_NW >= vocabulary, 0.0), targets_N - before_N)
        # only a row without finite probabilities, whose number is NaN, can point behind the vocabulary
        tokens_N = (blocks_N * BLOCK + places_N).clamp(max=vocabulary - 1)
    chosen_N = shares_NV.gather(1, tokens_N.unsqueeze(1)).squeeze(1)
    return tokens_N, (chosen_N.double() / totals_N).log().float()


def _among_few(logits_NV: Tensor, uniforms_N: Tensor, temperature: float, settings: RolloutConfig) -> Drawn:
    # the likeliest are the same at every temperature: nothing else of the vocabulary need be divided by it
    likeliest_NK, ids_NK = logits_NV.topk(min(settings.top_k, logits_NV.shape[1]), dim=1)
    scaled_NK = likeliest_NK.float() / temperature
    among_NK = support(scaled_NK, settings)
    support_NK, values_NK = ids_NK.gather(1, among_NK), scaled_NK.gather(1, among_NK)
    values_NK = values_NK - values_NK[:, :1]
    weights_NK = values_NK.double().exp()
    repeated_NK = support_NK == support_NK[:, :1]
    repeated_NK[:, 0] = False
    weights_NK = weights_NK.masked_fill(repeated_NK, 0.0)
    totals_N = weights_NK.sum(dim=1)
    places_N, _ = _first_above(weights_NK, uniforms_N.double() * totals_N)
    places_N1 = places_N.unsqueeze(1)
    logprobs_N = values_NK.gather(1, places_N1).squeeze(1) - totals_N.log().float()
    return Drawn(support_NK.gather(1, places_N1).squeeze(1), logprobs_N, support_NK)


def _first_above(weights_NW: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """(the first place of each row up to which the weights add up to more than its target, the sum before it). Never
    a place of weight 0: where rounding leaves none above the target, the last place with a weight."""
    # as a product, for a cumulative sum has no repeatable kernel on a GPU
    cumulated_NW = weights_NW @ _triangle(weights_NW.shape[1], weights_NW.device)
    weighty_NW = weights_NW > 0
    above_NW = weighty_NW & (cumulated_NW > targets_N.unsqueeze(1))
    last_N = weights_NW.shape[1] - 1 - weighty_NW.flip(1).int().argmax(dim=1)
    places_N = above_NW.int().argmax(dim=1).where(above_NW.any(dim=1), last_N)
    before_NW = cumulated_NW - weights_NW
    return places_N, before_NW.gather(1, places_N.unsqueeze(1)).squeeze(1)


@cache
def _triangle(size: int, device: torch.device) -> Tensor:
    return torch.ones(size, size, dtype=torch.float64, device=device).triu()


def support(scaled_NV: Tensor, settings: RolloutConfig) -> Tensor:
    """ids_NK of the tokens that may be sampled: the top_k likeliest, of these the smallest set that holds top_p of
    their probability, of these none below min_p of the likeliest. A row with fewer than K repeats its likeliest."""
    values_NK, ids_NK = scaled_NV.topk(min(settings.top_k, scaled_NV.shape[1]), dim=1)
    probabilities_NK = values_NK.softmax(dim=1)
    # the probability of all likelier tokens; as a product, for a cumulative sum has no repeatable kernel on a GPU
    likelier_KK = torch.ones(ids_NK.shape[1], ids_NK.shape[1], device=ids_NK.device).triu(diagonal=1)
    before_NK = probabilities_NK @ likelier_KK
    kept_NK = probabilities_NK >= settings.min_p * probabilities_NK[:, :1]
    if settings.top_p < 1:  # of rounding alone, what is before a token may reach 1
        kept_NK &= before_NK < settings.top_p
    return ids_NK.where(kept_NK, ids_NK[:, :1])

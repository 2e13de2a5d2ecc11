"""Plain log-probs of a model: prompt + completion, no padding, no cache, eval mode, log-softmax in float32.

They are the oracle against which a trainer's own scoring is held, so they share no line with it: not the packing, not
the head, not the log-probs of grpo.py. Slow, and right by being simple.

Shape legend: N rows, L tokens of prompt and completion, T completion tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from assay.calibration import ID_CLASSES, KEPT, LOWEST, MANY, Distributions, Tally

AT_A_TIME = 128  # tokens whose logits are copied to float32 together
ROWS = 16  # of one length, in one pass
HEATS = 20  # temperatures per 1 that are tried first
FEWEST = 8  # log-probs that one temperature does not give by chance
SAME_SCORE = 1e-3  # between two ways to compute a log-prob in float32

Support = Sequence[Sequence[int]]  # of each completion token, those it was sampled among


class Plain(NamedTuple):
    """Log-probs of one completion, float32 on the CPU."""

    scaled_T: Tensor  # at the sampling temperature, among the tokens that could be sampled
    raw_T: Tensor  # at temperature 1, among all tokens
    entropy_T: Tensor  # of the distributions of scaled_T
    variance_T: Tensor  # of the log-prob of a draw from them


EMPTY = Plain(*(torch.zeros(0) for _ in Plain._fields))


def plain_logprobs(
    model: nn.Module,
    prompt_tokens: Sequence[int],
    tokens: Sequence[int],
    *,
    temperature: float,
    support: Support | None = None,
    tally: Tally | None = None,
    forced: Sequence[bool] = (),
) -> Plain:
    """Of the completion `tokens`, by one forward pass. Modes and random states are left as they were. `tally` counts
    the tokens that are not `forced`."""
    if not tokens:
        return EMPTY
    if not prompt_tokens:
        raise ValueError("the prompt holds no token, so nothing predicts the first completion token; give its ids")
    with _eval_mode(model):
        (logits_TV,) = plain_logits(model, [[*prompt_tokens, *tokens]], len(tokens))
        if tally is not None:
            sampled = [not (place < len(forced) and forced[place]) for place in range(len(tokens))]
            _count(tally, logits_TV, tokens, temperature, sampled, prompt_tokens, support)
        return _plain(logits_TV, tokens, temperature, support)


def plain_logprobs_of_rows(
    model: nn.Module,
    rows: Sequence[Sequence[int]],
    temperature: float,
    tally: Tally | None = None,
    prompts: Sequence[int] = (),
) -> list[Plain]:
    """Of each row's tokens but the first, given those before; rows of one length share a pass. `tally` counts those
    behind the prompt: `prompts` are their lengths."""
    found: dict[int, Plain] = {}
    for length in {len(row): None for row in rows}:
        numbers = [number for number, row in enumerate(rows) if len(row) == length]
        for first in range(0, len(numbers), ROWS):
            part = numbers[first : first + ROWS]
            if length < 2:
                found |= dict.fromkeys(part, EMPTY)
                continue
            with _eval_mode(model):
                logits_NTV = plain_logits(model, [rows[number] for number in part], length - 1)
                for number, logits_TV in zip(part, logits_NTV, strict=True):
                    found[number] = _plain(logits_TV, rows[number][1:], temperature)
                    if tally is not None and 1 <= prompts[number] < length:
                        prompt, tokens = rows[number][: prompts[number]], rows[number][prompts[number] :]
                        _count(tally, logits_TV[-len(tokens) :], tokens, temperature, [True] * len(tokens), prompt)
    return [found[number] for number in range(len(rows))]


def temperature_behind(
    model: nn.Module, rows: Sequence[tuple[Sequence[int], Sequence[int], Tensor]], stated: float
) -> float | None:
    """The one temperature at which the model's log-probs of these completions are the given ones; rows are (prompt,
    completion, log-probs with NaN where they are not known). None where there is none, or it is the stated one."""
    kept = []
    with _eval_mode(model):
        for prompt_tokens, tokens, scores_T in rows:
            if tokens and prompt_tokens:
                (logits_TV,) = plain_logits(model, [[*prompt_tokens, *tokens]], len(tokens))
                known_T = scores_T.isfinite().cpu()
                chosen_T = torch.tensor([int(token) for token in tokens])[known_T]
                kept.append((logits_TV.float().cpu()[known_T], chosen_T, scores_T.cpu().float()[known_T]))
    if sum(len(chosen_T) for _, chosen_T, _ in kept) < FEWEST:
        return None
    logits_NV, chosen_N, scores_N = (torch.cat(parts) for parts in zip(*kept, strict=True))

    def largest(temperature: float) -> float:
        logprobs_NV = torch.log_softmax(logits_NV / temperature, dim=1)
        return float((logprobs_NV.gather(1, chosen_N[:, None])[:, 0] - scores_N).abs().max())

    low, high = min((largest(t / HEATS), t / HEATS) for t in range(HEATS // 10, 5 * HEATS))[1] - 1 / HEATS, 0.0
    low, high = max(low, 0.5 / HEATS), low + 2 / HEATS
    for _ in range(40):  # the largest difference has one minimum
        third = (high - low) / 3
        low, high = (low, high - third) if largest(low + third) < largest(high - third) else (low + third, high)
    found = (low + high) / 2
    return found if largest(found) < SAME_SCORE and abs(found - stated) > 0.01 * stated else None


def plain_logits(model: nn.Module, rows: Sequence[Sequence[int]], last: int) -> Tensor:
    """logits_NTV that predict the last tokens of rows of one length. A model that can is asked to leave out those of
    the prompt, which nobody needs and a large vocabulary makes expensive."""
    device = next(model.parameters()).device
    ids_NL = torch.tensor([[int(token) for token in row] for row in rows], dtype=torch.int64, device=device)
    how: dict[str, Any] = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    if last + 1 < ids_NL.shape[1] and "logits_to_keep" in inspect.signature(model.forward).parameters:
        how["logits_to_keep"] = last + 1
    logits_NLV = logits_of(model(ids_NL, **how))
    if logits_NLV is None or logits_NLV.dim() != 3 or len(logits_NLV) != len(rows) or logits_NLV.shape[1] <= last:
        raise ValueError("the model returned no logits [rows, tokens, vocabulary]")
    # the prompt's last token predicts the first of the completion; the completion's last token predicts nothing
    return logits_NLV[:, -last - 1 : -1]


def logits_of(output: object) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(output, (tuple, list)):
        return next((part for part in output if isinstance(part, Tensor) and part.dim() == 3), None)
    return None


def _plain(logits_TV: Tensor, tokens: Sequence[int], temperature: float, support: Support | None = None) -> Plain:
    scaled_T, entropy_T, variance_T = _scores(logits_TV, tokens, temperature, support)
    is_raw = support is None and temperature == 1.0
    raw_T = scaled_T if is_raw else _scores(logits_TV, tokens, 1.0)[0]
    return Plain(scaled_T, raw_T, entropy_T, variance_T)


def _count(
    tally: Tally,
    logits_TV: Tensor,
    tokens: Sequence[int],
    temperature: float,
    sampled: Sequence[bool],
    prompt_tokens: Sequence[int],
    support: Support | None = None,
) -> None:
    for first in range(0, len(tokens), AT_A_TIME):
        part = slice(first, first + AT_A_TIME)
        if not tally.has_room(len(tokens[part]), logits_TV.shape[1]):
            return
        scaled_tV = logits_TV[part].float() / temperature
        if support is not None:
            scaled_tV = scaled_tV.masked_fill(_outside(scaled_tV, support[part]), -torch.inf)
        row = _distributions(torch.log_softmax(scaled_tV, dim=1), tokens[part])
        tally.add(row, prompt_tokens, sampled[part], first, answer=tokens[:first])


def _distributions(logprobs_tV: Tensor, tokens: Sequence[int]) -> Distributions:
    vocabulary = logprobs_tV.shape[1]
    if vocabulary <= MANY:
        return Distributions.of(logprobs_tV.cpu().numpy(), tokens)
    logprobs_tV = logprobs_tV.clamp(min=LOWEST)
    chosen_t = torch.tensor([int(token) for token in tokens], device=logprobs_tV.device)
    sorted_tK = logprobs_tV.topk(KEPT, dim=1).values
    p_tV = nn.functional.pad(logprobs_tV.exp(), (0, -vocabulary % ID_CLASSES))
    parts = (
        chosen_t,
        logprobs_tV.gather(1, chosen_t[:, None])[:, 0],
        sorted_tK,
        (1 - sorted_tK.exp().sum(dim=1)).clamp(min=0.0),
        p_tV.view(len(tokens), -1, ID_CLASSES).sum(dim=1),
    )
    ids_t, *others = (part.cpu().numpy() for part in parts)
    chosen, kept, tail, classes = (part.astype(float) for part in others)
    return Distributions(ids_t, chosen, kept, tail, classes, vocabulary, None)


def _outside(scaled_tV: Tensor, support: Support) -> Tensor:
    outside_tV = torch.ones_like(scaled_tV, dtype=torch.bool)
    for row, ids in enumerate(support):
        outside_tV[row, list(ids)] = False
    return outside_tV


def _scores(
    logits_TV: Tensor, tokens: Sequence[int], temperature: float, support: Support | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """log softmax(logits / temperature) at the tokens, over their supports alone if given; its entropy and variance."""
    parts = []
    for first in range(0, len(tokens), AT_A_TIME):
        places = range(first, min(first + AT_A_TIME, len(tokens)))
        scaled_tV = logits_TV[first : first + AT_A_TIME].float() / temperature
        if support is not None:
            outside_tV = _outside(scaled_tV, [support[place] for place in places])
            scaled_tV = scaled_tV.masked_fill(outside_tV, -torch.inf)  # a token outside of its support: log 0
        chosen_t = torch.tensor([int(tokens[place]) for place in places], device=scaled_tV.device)
        rows_t = torch.arange(len(places), device=scaled_tV.device)
        logprobs_tV = torch.log_softmax(scaled_tV, dim=1)
        finite_tV = logprobs_tV.masked_fill(
            logprobs_tV == -torch.inf, 0.0
        )  # their probability is 0, and 0 * inf is NaN
        entropy_t = -(logprobs_tV.exp() * finite_tV).sum(dim=1)
        variance_t = (logprobs_tV.exp() * (finite_tV + entropy_t[:, None]).square()).sum(dim=1)
        parts.append(torch.stack([logprobs_tV[rows_t, chosen_t], entropy_t, variance_t]).cpu())
    logprobs_T, entropy_T, variance_T = torch.cat(parts, dim=1)
    return logprobs_T, entropy_T, variance_T


@contextlib.contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """No gradients either; every module's mode and torch's random states are put back."""
    training = [module for module in model.modules() if module.training]
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for module in training:  # not model.eval(): a module may do more there, and no one would undo it
                module.training = False
            yield
    finally:
        for module in training:
            module.training = True

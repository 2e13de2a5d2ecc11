"""Plain log-probs of a model: prompt + completion, no padding, no cache, eval mode, log-softmax in float32.

They are the oracle against which a trainer's own scoring is held, so they share no line with it: not the packing, not
the head, not the log-probs of grpo.py. Slow, and right by being simple.

Shape legend: N rows, L tokens of prompt and completion, T completion tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from assay.calibration import ID_CLASSES, KEPT, LOWEST, MANY, Distributions, Tally

AT_A_TIME = 128  # tokens whose logits are copied to float32 together
ROWS = 16  # of one length, in one pass
COLDEST, HOTTEST = 0.1, 5.0  # temperatures that are looked for
ROWS_ASKED, TOKENS_ASKED = 8, 64  # for the temperature behind them
TOKENS_SOLVED = 16  # of which it is computed; the others show whether it is right
STEPS = 20  # Newton's, at most
FEWEST = 8  # log-probs that one temperature does not give by chance
SAME_SCORE = 1e-3  # between two ways to compute a log-prob in float32
COARSE = 0.1  # of the mean difference between two ways to compute log-probs in 16 bits

Support = Sequence[Sequence[int]]  # of each completion token, those it was sampled among


class Plain(NamedTuple):
    """Log-probs of one completion, float32 on the CPU."""

    scaled_T: Tensor  # at the sampling temperature, among the tokens that could be sampled
    raw_T: Tensor  # at temperature 1, among all tokens
    entropy_T: Tensor  # of the distributions of scaled_T
    variance_T: Tensor  # of the log-prob of a draw from them


class Scored(NamedTuple):
    """A completion with its log-probs as somebody has computed them, and the plain ones; both on the CPU."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    scores_T: Tensor  # NaN where they are not known
    plain_T: Tensor


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


def temperature_behind(model: nn.Module, rows: Iterable[Scored], stated: float) -> float | None:
    """The one temperature at which the model's log-probs of the first rows are the given ones. None where there is
    none, where it is the stated one, and where the given ones differ by no more than rounding."""
    asked = [row for row in rows if row.prompt and row.tokens][:ROWS_ASKED]
    apart_N = torch.cat([torch.zeros(0), *((row.scores_T - row.plain_T).abs() for row in asked)])
    apart_N = apart_N[apart_N.isfinite()]
    is_coarse = next(model.parameters()).element_size() < 4
    if int((apart_N > SAME_SCORE).sum()) < FEWEST or (is_coarse and float(apart_N.mean()) <= COARSE):
        return None
    with _eval_mode(model):
        parts = zip(*(_known_logits(model, row, TOKENS_ASKED // len(asked)) for row in asked), strict=True)
        logits_NV, chosen_N, scores_N = (torch.cat(part) for part in parts)
        every = max(1, len(scores_N) // TOKENS_SOLVED)
        for number in _heats(logits_NV[::every], chosen_N[::every], float(scores_N[::every].mean())):
            found_N, stated_N = (_chosen(logits_NV / heat, chosen_N) for heat in (number, stated))
            shown = int(((stated_N - scores_N).abs() > SAME_SCORE).sum())
            is_same = bool(((found_N - scores_N).abs() < SAME_SCORE).all())
            if shown >= FEWEST and is_same and abs(number - stated) > 0.01 * stated:
                return number
    return None


def _known_logits(model: nn.Module, row: Scored, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of the first tokens whose log-probs are given: logits, each less the largest; ids; log-probs."""
    places = row.scores_T.isfinite().nonzero()[:most, 0]
    tokens = row.tokens[: int(places[-1]) + 1 if len(places) else 1]
    (logits_TV,) = plain_logits(model, [[*row.prompt, *tokens]], len(tokens))
    places = places.to(logits_TV.device)
    logits_NV = logits_TV[places].float()
    chosen_N = torch.tensor([int(token) for token in tokens], device=logits_NV.device)[places]
    scores_N = row.scores_T.float().to(logits_NV.device)[places]
    return (logits_NV - logits_NV.amax(dim=1, keepdim=True)).clamp(min=LOWEST), chosen_N, scores_N


def _chosen(logits_NV: Tensor, chosen_N: Tensor) -> Tensor:
    return logits_NV.gather(1, chosen_N[:, None])[:, 0] - logits_NV.logsumexp(dim=1)


def _heats(logits_NV: Tensor, chosen_N: Tensor, mean: float) -> Iterator[float]:
    """The temperatures that give the mean log-prob: one or two, for it is concave in 1 / temperature, so that Newton's
    steps from the coldest and from the hottest each go straight to the next one."""
    for inverse, side in ((1 / HOTTEST, 1.0), (1 / COLDEST, -1.0)):
        for _ in range(STEPS):
            scaled_NV = logits_NV * inverse
            expected_N = (scaled_NV.softmax(dim=1) * logits_NV).sum(dim=1)
            slope = float((logits_NV.gather(1, chosen_N[:, None])[:, 0] - expected_N).mean())
            if slope * side <= 0:
                break
            step = (mean - float(_chosen(scaled_NV, chosen_N).mean())) / slope
            inverse += step
            if not 1 / HOTTEST <= inverse <= 1 / COLDEST:
                break
            if abs(step) < 1e-5 * inverse:
                yield 1 / inverse
                break


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

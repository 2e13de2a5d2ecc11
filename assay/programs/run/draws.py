"""How tokens were really drawn: from which weights, with which settings, and by which weights of the model.

Shape legend: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.programs.facts.kinds import Kind
from assay.programs.graph import Value
from assay.programs.once import once
from assay.programs.run.kinds import RunKinds
from assay.programs.run.policies import scored_distribution
from assay.programs.run.roles import LossPiece, backwards_since_sampling, is_corrected
from assay.programs.run.sight import number_of, numbers_of, sight
from assay.programs.run.watched import Forward, GenerateCall, Sampling, WatchedRun, WatchedUpdate, spot_of
from assay.programs.walk import walk
from assay.record.batch import Array
from assay.record.metrics import LARGEST_FLOAT32
from assay.verdict import Place

MOST_DRAWS = 48  # draws that are looked at
ROWS_OF_A_DRAW = 8
SAME_HEAT = 1e-3  # of the temperature
DRAW_FIT = 1e-3  # of the spread of the log-weights
NO_CHANCE = -80.0  # below the likeliest token, in log-prob
COARSE_DRAW_FIT = 5e-2  # in 16 bits
# settings of generate() that take tokens out or bend their weights, and what switches each off
OFF: dict[str, tuple[Any, ...]] = {
    "top_k": (0, None), "top_p": (1.0, None), "min_p": (0.0, None), "typical_p": (1.0, None),
    "repetition_penalty": (1.0, None),
    "no_repeat_ngram_size": (0, None), "epsilon_cutoff": (0.0, None), "eta_cutoff": (0.0, None),
}  # fmt: skip
_PASSED = frozenset(
    "softmax log_softmax cast index squeeze unsqueeze view reshape flatten clone detach "
    "element attribute exp changed "
    "categorical sample expand".split()
)
_CUTS = frozenset("topk sort masked_fill where scatter setitem gather cumsum".split())
_BENT = frozenset(
    "sigmoid relu abs softplus square pow add sub clamp div mul cast index squeeze view reshape unsqueeze".split()
)
_NORMALISES = frozenset("softmax log_softmax exp".split())


def sampling_of(value: Value, kinds: RunKinds) -> Sampling:
    """From what a token was drawn: the pass, the temperature, and what was cut away before."""
    temperature: float | None = 1.0
    cuts: list[str] = []
    for current in chain(value.input, ends=("forward",)):
        made = kinds.learned_in(current)
        if made is not None and made.value is current:
            break  # the last layer
        if current.op in ("div", "mul"):
            factor = number_of(current.arguments.get("other"))
            if factor is None or factor <= 0:
                temperature = None
            elif temperature is not None and kinds.of(current) in (Kind.LOGITS, Kind.LOG_SOFTMAX, None):
                temperature *= factor if current.op == "div" else 1 / factor
            elif kinds.of(current) is not Kind.PROBABILITIES:  # dividing probabilities by their sum changes nothing
                temperature = None
        elif current.op in _CUTS:
            cuts.append(current.op)
        elif current.op not in _PASSED:
            is_known = kinds.of(current) in (Kind.LOGITS, Kind.LOG_SOFTMAX, Kind.PROBABILITIES)
            temperature = temperature if is_known and current.op in ("add", "clamp") else None
    return Sampling(value, kinds.forward_of(value), temperature, tuple(cuts))


def other_temperature(run: WatchedRun, update: WatchedUpdate, fields: Mapping[str, Any]) -> dict[str, float]:
    """The temperature of the log-probs in the loss, where it is another than that of the draws; old log-probs at the
    temperature of the draws are the ratio's business."""
    drawn, old_BT, new_BT = (fields.get(name) for name in ("temperature", "old_logprobs", "new_logprobs"))
    found = {_scored_temperature(piece, run.kinds) for piece in update.pieces}
    scored = found.pop() if len(found) == 1 else None
    if not drawn or scored is None or fields.get("correction") or abs(scored - drawn) <= SAME_HEAT * drawn:
        return {}
    if old_BT is not None and new_BT is not None and np.abs(old_BT - new_BT)[fields["mask"]].max() > LARGEST_FLOAT32:
        return {}
    return {"new_temperature": scored}


def _scored_temperature(piece: LossPiece, kinds: RunKinds) -> float | None:
    """What the logits were divided by on the way to the log-probs in the loss; None where that is not known."""
    made_of = list(chain(piece.new, ends=("forward",)))
    if any(made.op in ("div", "mul") and kinds.of(made) is not Kind.LOGITS for made in made_of):
        return None  # behind the softmax it is not a temperature
    return sampling_of(Value("detach", {"input": piece.new}, piece.new.place, piece.new.context, 0), kinds).temperature


def chain(value: Value | None, ends: tuple[str, ...] = ("forward", "given")) -> Iterator[Value]:
    """The value and what its numbers were made of, back to the pass."""

    def before(made: Value) -> list[Value]:
        named = [made.arguments[name] for name in ("input", "other", "logits", "probs") if name in made.arguments]
        return [given for given in named if given.op != "constant"][:1]  # where(condition, 0.0, weights)

    made_of = walk([value] if value is not None else [], before, until=lambda made: made.op in ends)
    return (weights for weights in made_of if weights.op not in ends)


def is_trained_on(run: WatchedRun, value: Value) -> bool:
    """Whether an update used what was drawn at this place; what only an evaluation draws is nobody's fault."""
    return any(spot_of(value) in update.sampled_at for update in run.updates)


def cut_settings(run: WatchedRun, call: GenerateCall) -> dict[str, Any]:
    """The settings in effect that take tokens out of a distribution or bend it."""
    cuts: dict[str, Any] = {name: setting for name, off in OFF.items() if (setting := call.config.get(name)) not in off}
    vocabulary = run.models[call.model].vocabulary
    if vocabulary is not None and isinstance(cuts.get("top_k"), int) and cuts["top_k"] >= vocabulary:
        cuts.pop("top_k")
    return cuts


def shown_settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={setting}" for name, setting in settings.items())


# -- the weights of a draw


@dataclass(frozen=True)
class DrawWeights:
    """The weights of one draw, compared with the logits that they were made of."""

    place: Place
    made_at: Place
    lowest: float | None = None  # where a weight is below 0
    are_logprobs: bool = False  # of weights below 0: none is above
    wrong: str = ""  # what the weights are, if they are not a softmax at any temperature
    is_softmax: bool = False
    cut: tuple[frozenset[int], ...] = ()  # of each row that has some: the tokens with no chance to be drawn


@once
def draw_weights(run: WatchedRun) -> list[DrawWeights]:
    """Of the first draws, and of the draw that ended the script."""
    draws = [draw.value for draw in run.samplings[:MOST_DRAWS] if not draw.is_composed]
    failed = run.failure.value if run.failure is not None else None
    if failed is not None and failed.op == "multinomial":
        draws.append(failed)
    found = [_weights_of(run, draw, draw.arguments.get("input")) for draw in draws]
    return [weights for weights in found if weights is not None]


def refused_weights(run: WatchedRun) -> list[DrawWeights]:
    """Of the distribution that was made on the line where the script ended."""
    line = run.failure.place.line if run.failure is not None and run.failure.place is not None else None
    made = [distribution for distribution in run.graph.of("categorical") if distribution.place.line == line][-1:]
    return [weights for distribution in made if (weights := _weights_of(run, distribution, distribution)) is not None]


def _weights_of(run: WatchedRun, draw: Value, weights: Value | None) -> DrawWeights | None:
    if weights is None:
        return None
    is_log = weights.op == "categorical" and "logits" in weights.arguments
    of = weights
    if weights.op == "categorical":
        of = weights.arguments.get("logits") or weights.arguments.get("probs") or weights
    made_of = list(chain(of))
    logits = [value for value in made_of if run.kinds.of(value) is Kind.LOGITS or id(value) in run.kinds.logits]
    given_BV = _rows(of)
    if given_BV is None or not logits:
        return None
    place = draw.place if draw.op != "categorical" else weights.place
    if not is_log and (given_BV < 0).any():
        return DrawWeights(place, of.place, float(given_BV.min()), bool((given_BV <= 1e-6).all()))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        weights_BV = np.exp(given_BV - given_BV.max(axis=-1, keepdims=True)) if is_log else given_BV
    logits_BV = _rows(logits[0])
    if logits_BV is None or logits_BV.shape != weights_BV.shape:
        return None
    is_coarse = any(seen is not None and seen.is_half for seen in (sight(of), sight(logits[0])))
    wrong = _form(run, made_of, weights_BV, logits_BV, COARSE_DRAW_FIT if is_coarse else DRAW_FIT, is_log=is_log)
    if wrong:
        return DrawWeights(place, of.place, wrong=wrong)
    cut = [
        frozenset(np.flatnonzero((row == 0) & np.isfinite(full)).tolist())
        for row, full in zip(weights_BV, _uncut(logits, logits_BV), strict=False)
    ]
    return DrawWeights(place, of.place, is_softmax=True, cut=tuple(row for row in cut if row))


@once
def scores_are_cut(run: WatchedRun) -> bool:
    """Whether tokens were taken out of the distribution that the log-probs in the loss are of, too."""
    pieces = [piece for backward in backwards_since_sampling(run)[:2] for piece in backward.pieces]
    if any(value.op in ("topk", "sort") for piece in pieces for value in chain(piece.new)):
        return True
    for piece in pieces:
        given, is_log = scored_distribution(piece, run.kinds)
        seen, numbers = sight(given), numbers_of(given)
        numbers = seen.rows if numbers is None and seen is not None else numbers
        if numbers is None or numbers.ndim < 2 or numbers.dtype.kind != "f":
            continue
        log_NV = numbers.reshape(-1, numbers.shape[-1]) if is_log else _log(numbers.reshape(-1, numbers.shape[-1]))
        if (log_NV < log_NV.max(axis=1, keepdims=True) + NO_CHANCE).any():
            return True
    return False


def _uncut(logits: Sequence[Value], logits_BV: Array) -> Array:
    """The logits before anything was taken out of them, where they have the same width."""
    for value in reversed(logits):
        rows = _rows(value)
        if rows is not None and rows.shape == logits_BV.shape:
            return rows
    return logits_BV


def _rows(value: Value) -> Array | None:
    """The first few rows of a tensor whose last dimension is the vocabulary."""
    seen = sight(value)
    if seen is None or not seen.shape:
        return None
    numbers = numbers_of(value)
    if numbers is None:
        return None if seen.rows is None else np.asarray(seen.rows)
    return numbers.reshape(-1, seen.shape[-1])[:ROWS_OF_A_DRAW].astype(np.float64)


def _form(
    run: WatchedRun, made_of: Sequence[Value], weights_BV: Array, logits_BV: Array, limit: float, *, is_log: bool
) -> str:
    """What the weights are, if they are not a softmax at any temperature; "": they are, or it is not known."""
    if all(
        is_line(logits, weights, limit) is not False
        for logits, weights in zip(logits_BV, _log(weights_BV), strict=True)
    ):
        return ""
    probabilities = next((value for value in made_of[1:] if run.kinds.of(value) is Kind.PROBABILITIES), made_of[0])
    softmax_BV = _rows(probabilities)
    if softmax_BV is not None and _are_lines(softmax_BV, _log(weights_BV), limit):
        return "a softmax of probabilities"
    whole = sight(made_of[0])
    every_BV = numbers_of(made_of[0])
    several = whole is not None and len(whole.shape) == 2 and whole.shape[0] > 1
    if several and every_BV is not None:
        down, across = (np.allclose(every_BV.sum(axis=axis), 1, atol=0.01) for axis in (0, 1))
        if down and not across:
            return "a softmax over the rows of the batch"
    between = []
    for value in made_of:
        if run.kinds.of(value) is Kind.LOGITS:
            break
        between.append(value.op)
    if not between and not is_log:
        return "the logits themselves, without a softmax"
    if between and set(between) <= _BENT and not set(between) & _NORMALISES:
        return f"{' and '.join(dict.fromkeys(between))} of the logits, without a softmax"
    return ""


def _log(weights_BV: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(weights_BV)


def _are_lines(one_BV: Array, other_BV: Array, limit: float) -> bool:
    """Whether each row is one of the other: see is_line."""
    same = one_BV.shape == other_BV.shape
    return same and all(is_line(one_V, other_V, limit) for one_V, other_V in zip(one_BV, other_BV, strict=True))


def is_line(one_V: Array, other_V: Array, limit: float) -> bool | None:
    """Whether other = a one + b with a > 0, where both are finite; None where too few are left to say."""
    both_V = np.isfinite(one_V) & np.isfinite(other_V) & (other_V > -80)
    if both_V.sum() < 4 or np.ptp(one_V[both_V]) < 1e-6:
        return None
    slope, offset = np.polyfit(one_V[both_V], other_V[both_V], 1)
    rest = np.abs(slope * one_V[both_V] + offset - other_V[both_V]).max()
    return bool(slope > 0 and rest <= limit * max(float(np.ptp(other_V[both_V])), 1e-2))


# -- whose weights sampled


@dataclass(frozen=True)
class OtherSampler:
    """An update whose tokens were sampled by other weights than those that computed old."""

    update: WatchedUpdate
    piece: LossPiece
    old: Forward
    lag: int | None  # updates by which the sampler is older than the policy; None: it never was the policy
    is_reference: bool  # the model that sampled is the one that the KL leads to


@dataclass(frozen=True)
class Behaviour:
    agrees: bool  # some old log-probs are those of the weights that sampled
    other: OtherSampler | None  # the first update of which they are not


@once
def behaviour(run: WatchedRun) -> Behaviour:
    """Old log-probs beside the weights that sampled, in first updates that no importance weight corrects."""
    others = {forward.weights for forward in run.forwards if not run.models[forward.model].is_trained}
    agrees = False
    for update in run.updates:
        if len(update.samplers) != 1 or not update.is_first or not update.pieces or is_corrected(update.backwards):
            continue
        (sampler,) = update.samplers
        for piece in update.pieces:
            old = run.kinds.forward_of(piece.old_operand)
            if old is None or not run.models[old.model].is_trained or not sampler:
                continue
            if old.weights == sampler:
                agrees = True
                continue
            known = run.history.get(sampler)
            if known is None and sampler not in others:
                continue  # a copy of another precision has other sums
            if known is not None and known[1] >= old.version:
                continue
            references = {ref.model for other in update.pieces if (ref := run.kinds.forward_of(other.ref)) is not None}
            lag = None if known is None else old.version - known[1]
            return Behaviour(agrees, OtherSampler(update, piece, old, lag, bool(update.sampler_models & references)))
    return Behaviour(agrees, None)

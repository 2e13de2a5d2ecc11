"""How tokens were really drawn: from which distribution, with which settings, random numbers and weights.

Shape legend: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from assay.programs.run.origins import LOGITS, PROBABILITIES
from assay.programs.run.roles import is_corrected
from assay.programs.run.watched import Generation, Sampling, WatchedRun, numbers_of, sight
from assay.programs.value import Value
from assay.record.batch import Array
from assay.verdict import Place

MOST = 48  # draws that are looked at
ROWS = 8
FIT = 1e-3  # of the spread of the log-weights
COARSE = 5e-2  # in 16 bits
LEAST_PASSES = 4  # inside one generate(), or in one loop
_OFF = {
    "top_k": (0, None), "top_p": (1.0, None), "min_p": (0.0, None), "typical_p": (1.0, None),
    "repetition_penalty": (1.0, None),
    "no_repeat_ngram_size": (0, None), "epsilon_cutoff": (0.0, None), "eta_cutoff": (0.0, None),
}  # fmt: skip
_BENT = frozenset(
    "sigmoid relu abs softplus square pow add sub clamp div mul cast index squeeze view reshape unsqueeze".split()
)
_NORMALISES = frozenset("softmax log_softmax exp".split())
_ALONG = ("input", "logits", "probs")


def mark_sampling(trace: WatchedRun) -> None:
    _settings(trace)
    _random_numbers(trace)
    _weights(trace)
    _caches(trace)
    _behaviour(trace)


def _settings(trace: WatchedRun) -> None:
    for call in trace.generations:
        if not call.config.get("do_sample"):
            continue
        vocabulary = trace.models[call.model].vocabulary
        cuts = {name: one for name, off in _OFF.items() if (one := call.config.get(name)) not in off}
        if vocabulary is not None and isinstance(cuts.get("top_k"), int) and cuts["top_k"] >= vocabulary:
            cuts.pop("top_k")
        leaked = {name: one for name, one in cuts.items() if name not in call.stated}
        asked = {name: one for name, one in cuts.items() if name in call.stated}
        if leaked:
            trace.found(
                "SAMP03",
                f"generate() ran with {_listed(leaked)}, which the script did not ask for: the model's own generation "
                "configuration has it",
                call.value.place,
            )
        if asked and _is_trained_on(call.value, trace) and not is_corrected(trace.backwards):
            trace.found(
                "SAMP02",
                f"generate() ran with {_listed(asked)}, and the log-probs in the loss are those of the whole "
                "distribution",
                call.value.place,
            )
        if not cuts:
            trace.is_well("SAMP03", "generate() ran without settings that the script did not ask for")


def _listed(settings: dict[str, object]) -> str:
    return ", ".join(f"{name}={one}" for name, one in settings.items())


def _key(value: Value) -> tuple[object, ...]:
    return (value.place, value.context.calls)


def _is_trained_on(value: Value, trace: WatchedRun) -> bool:
    """Whether an update used what was drawn at this place; what only an evaluation draws is nobody's fault."""
    known = [update for update in trace.updates if update.sampled_at]
    return any(_key(value) in update.sampled_at for update in known)


def _random_numbers(trace: WatchedRun) -> None:
    first: dict[tuple[object, ...], Value] = {}
    repeated = 0
    spot: tuple[Place, Place] | None = None
    draws: list[Sampling | Generation] = [
        *trace.samplings,
        *(one for one in trace.generations if one.config.get("do_sample")),
    ]
    blind = not any(update.sampled_at for update in trace.updates)  # which draws were trained on is not known
    for draw in sorted(draws, key=lambda one: one.value.order):
        if draw.state is None or not (blind or _is_trained_on(draw.value, trace)):
            continue
        known = first.setdefault((draw.state, *_key(draw.value)), draw.value)
        if known is not draw.value:
            repeated += 1
            spot = spot or (draw.value.place, known.place)
    if spot is None or (blind and repeated < len(first)):
        if first and not blind:
            trace.is_well("SAMP05", f"{len(first)} draws began with different random numbers each")
        return
    seeds = [event.place for event in trace.of("manual_seed")]
    again = [place for place in seeds if seeds.count(place) > 1]
    trace.found(
        "SAMP05",
        f"{repeated} of {repeated + len(first)} draws began with the same state of the random numbers as an earlier "
        "one: "
        "the same random numbers are used again",
        *(again[:1] or spot[:1]),
        spot[0],
    )


# -- the weights of a draw


def _weights(trace: WatchedRun) -> None:
    draws = [one.value for one in trace.samplings[:MOST]]
    failed = trace.failure.value if trace.failure is not None else None
    if failed is not None and failed.op == "multinomial":
        draws.append(failed)
    line = trace.failure.place.line if trace.failure is not None and trace.failure.place is not None else None
    categorical = [one for one in trace.graph.of("categorical") if one.place.line == line][-1:]
    cuts: list[frozenset[int]] = []
    for draw in draws:
        cuts += _judged(trace, draw, draw.arguments.get("input"))
    for one in categorical:
        _judged(trace, one, one)
    trained = [one for one in draws if _is_trained_on(one, trace)]
    if len(set(cuts)) > 1 and trained and not _scores_cut(trace) and not is_corrected(trace.backwards):
        trace.found(
            "SAMP02",
            f"up to {max(map(len, cuts))} tokens of the vocabulary had no chance to be drawn, others in each draw, "
            "and the "
            "log-probs in the loss are those of the whole distribution",
            trained[0].place,
        )


def _judged(trace: WatchedRun, draw: Value, weights: Value | None) -> Iterator[frozenset[int]] | list[frozenset[int]]:
    if weights is None:
        return []
    is_log = weights.op == "categorical" and "logits" in weights.arguments
    of = weights
    if weights.op == "categorical":
        of = weights.arguments.get("logits") or weights.arguments.get("probs") or weights
    chain = list(_chain(of))
    logits = next((one for one in chain if trace.origins.kind(one) == LOGITS), None)
    found = _rows(of)
    if found is None or logits is None:
        return []
    given_BV = found
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        weights_BV = np.exp(given_BV - given_BV.max(axis=-1, keepdims=True)) if is_log else given_BV
    place = draw.place if draw.op != "categorical" else weights.place
    if not is_log and (given_BV < 0).any():
        what = "log-probs" if (given_BV <= 1e-6).all() else "logits"
        trace.found(
            "SAMP07",
            f"the weights of the draw are {what}: the lowest is {given_BV.min():.3g}, and no weight may be below 0",
            place,
            of.place,
        )
        return []
    logits_BV = _rows(logits)
    if logits_BV is None or logits_BV.shape != weights_BV.shape:
        return []
    coarse = any(seen is not None and seen.dtype in ("bfloat16", "float16") for seen in (sight(of), sight(logits)))
    wrong = _form(trace, chain, weights_BV, logits_BV, COARSE if coarse else FIT, is_log=is_log)
    if wrong:
        trace.found(
            "SAMP07", f"the token is not drawn from the softmax of the logits: its weights are {wrong}", place, of.place
        )
        return []
    trace.is_well("SAMP07", "tokens are drawn from a softmax of the logits")
    rows = [
        frozenset(np.flatnonzero((row == 0) & np.isfinite(full)).tolist())
        for row, full in zip(weights_BV, _uncut(chain, logits_BV, trace), strict=False)
    ]
    return [row for row in rows if row]


def _uncut(chain: Sequence[Value], logits_BV: Array, trace: WatchedRun) -> Array:
    """The logits before anything was taken out of them, where they have the same width."""
    whole = [one for one in chain if trace.origins.kind(one) == LOGITS]
    for one in reversed(whole):
        rows = _rows(one)
        if rows is not None and rows.shape == logits_BV.shape:
            return rows
    return logits_BV


def _chain(value: Value) -> Iterator[Value]:
    current: Value | None = value
    while current is not None and current.op not in ("forward", "given"):
        yield current
        current = next((current.arguments[name] for name in _ALONG if name in current.arguments), None)


def _rows(value: Value) -> Array | None:
    """The first few rows of a tensor whose last dimension is the vocabulary."""
    seen = sight(value)
    if seen is None or not seen.shape:
        return None
    numbers = numbers_of(value)
    if numbers is None:
        return None if seen.rows is None else np.asarray(seen.rows)
    return numbers.reshape(-1, seen.shape[-1])[:ROWS].astype(np.float64)


def _form(
    trace: WatchedRun, chain: Sequence[Value], weights_BV: Array, logits_BV: Array, limit: float, *, is_log: bool
) -> str:
    """What the weights are, if they are no softmax at any temperature; "": they are, or it is not known."""
    if all(
        _is_line(logits, weights, limit) is not False
        for logits, weights in zip(logits_BV, _log(weights_BV), strict=True)
    ):
        return ""
    probabilities = next((one for one in chain[1:] if trace.origins.kind(one) == PROBABILITIES), chain[0])
    first = _rows(probabilities)
    if first is not None and first.shape == weights_BV.shape:
        softmax_BV = first
        if all(_is_line(one, log, limit) for one, log in zip(softmax_BV, _log(weights_BV), strict=True)):
            return "a softmax of probabilities"
    whole = sight(chain[0])
    every_BV = numbers_of(chain[0])
    several = whole is not None and len(whole.shape) == 2 and whole.shape[0] > 1
    if several and every_BV is not None:
        down, across = (np.allclose(every_BV.sum(axis=axis), 1, atol=0.01) for axis in (0, 1))
        if down and not across:
            return "a softmax over the rows of the batch"
    between = []
    for one in chain:
        if trace.origins.kind(one) == LOGITS:
            break
        between.append(one.op)
    if not between and not is_log:
        return "the logits themselves, without a softmax"
    if between and set(between) <= _BENT and not set(between) & _NORMALISES:
        return f"{' and '.join(dict.fromkeys(between))} of the logits, without a softmax"
    return ""


def _log(weights_BV: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(weights_BV)


def _is_line(one_V: Array, other_V: Array, limit: float) -> bool | None:
    """Whether other = a one + b with a > 0, where both are finite; None where too little is left to tell."""
    both_V = np.isfinite(one_V) & np.isfinite(other_V) & (other_V > -80)
    if both_V.sum() < 4 or np.ptp(one_V[both_V]) < 1e-6:
        return None
    slope, offset = np.polyfit(one_V[both_V], other_V[both_V], 1)
    rest = np.abs(slope * one_V[both_V] + offset - other_V[both_V]).max()
    return bool(slope > 0 and rest <= limit * max(float(np.ptp(other_V[both_V])), 1e-2))


def _scores_cut(trace: WatchedRun) -> bool:
    """Whether the log-probs in the loss were cut as well."""
    pieces = [piece for one in trace.backwards[:2] if one.roles is not None for piece in one.roles.pieces]
    return any(one.op in ("topk", "sort") for piece in pieces for one in _chain(piece.new))


# -- what it cost, and whose weights


def _caches(trace: WatchedRun) -> None:
    for call in trace.generations:
        if not trace.models[call.model].can_cache or len(call.widths) < LEAST_PASSES:
            continue
        if _grows(call.widths):
            trace.found("PERF01", _no_cache(len(call.widths), call.widths[-1]), call.value.place)
        else:
            trace.is_well("PERF01", "generate() reads each token once")
    widths: list[int] = []
    for draw in trace.samplings:
        forward = draw.forward
        seen = sight(forward.input_ids) if forward is not None else None
        if forward is None or seen is None or not trace.models[forward.model].can_cache:
            continue
        widths = [*widths, seen.shape[-1]] if widths and seen.shape[-1] == widths[-1] + 1 else [seen.shape[-1]]
        if len(widths) >= LEAST_PASSES and not forward.caches:
            trace.found("PERF01", _no_cache(len(widths), widths[-1]), forward.value.place)


def _grows(widths: Sequence[int]) -> bool:
    return all(after == before + 1 for before, after in pairwise(widths))


def _no_cache(passes: int, width: int) -> str:
    return (
        f"each token that is drawn costs a pass over all tokens before it, without a cache: pass {passes} reads {width}"
    )


def _behaviour(trace: WatchedRun) -> None:
    """Old log-probs must be those of the weights that sampled."""
    others = {one.weights for one in trace.forwards if not trace.models[one.model].is_trained}
    for update in trace.updates:
        pieces = [piece for one in update.backwards if one.roles is not None for piece in one.roles.pieces]
        if len(update.samplers) != 1 or not update.is_first or not pieces or is_corrected(update.backwards):
            continue
        (sampler,) = update.samplers
        for piece in pieces:
            old = trace.origins.forward_of(piece.old_operand)
            if old is None or not trace.models[old.model].is_trained or not sampler:
                continue
            if old.weights == sampler:
                trace.is_well("RAT05", "old log-probs are those of the weights that sampled")
                continue
            known = trace.history.get(sampler)
            if known is None and sampler not in others:
                continue  # a copy of another precision has other sums
            lag = "other weights" if known is None else f"weights {old.version - known[1]} updates older"
            if known is not None and known[1] >= old.version:
                continue
            references = {other.model for one in pieces if (other := trace.origins.forward_of(one.ref)) is not None}
            if known is not None and not update.sampler_models & references:
                trace.found(
                    "SYNC01",
                    f"the tokens were sampled by weights {old.version - known[1]} updates older than the policy, and "
                    "no "
                    "importance weight corrects for it: the sampler was not given the new ones",
                    update.place,
                )
            trace.found(
                "RAT05",
                f"old log-probs are computed by the policy, but {lag} sampled the tokens, and no importance weight "
                "corrects "
                "for it",
                old.value.place,
                piece.product.place if piece.product is not None else update.place,
            )
            return

"""
## What it checks
Output t - 1 of a causal model predicts token t. The check compares the recorded log-probs with the plain ones of the
model (else with the sampler's), in place and moved by one or two tokens. They must fit best in place. Numbers that
fit nowhere, and are far too low, are what logits give that were never shifted.

## Why it hurts
Each token is pulled by the probability of its neighbour: the gradient has nothing to do with the sampled data. The EOS
or the first token drops out of the loss and a token of the prompt or of the padding comes in.

## How to fix it
Shift logits and targets against each other once, and cut both to the completion in the same way.

    # before
    logits = model(ids).logits[:, -completion_length:]
    logprobs = torch.log_softmax(logits, dim=-1).gather(2, completion_ids.unsqueeze(2)).squeeze(2)
    # after: one output earlier
    logits = model(ids).logits[:, -completion_length - 1 : -1]
    logprobs = torch.log_softmax(logits, dim=-1).gather(2, completion_ids.unsqueeze(2)).squeeze(2)

## When it is wrong
If only the record is shifted (an array one column longer than the others, cut on the wrong side) and the loss is not,
fix what is recorded. Rows whose tokens all have nearly the same log-prob show no shift. Log-probs that are not the
model's own at any lag are left to engine_mismatch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import LOOP
from assay.doctor.facts.logprobs import loss_tokens, not_looked_at, rows_of_others
from assay.doctor.illnesses.sampling.engine_mismatch import not_the_models_own
from assay.programs.edits import Spot
from assay.programs.facts.positions import BUILT, Linear, Span, Spans, constant, plus
from assay.programs.facts.sampling.scoring import Scoring, scorings
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import main_input, peel, walk
from assay.record.batch import Array
from assay.record.metrics import MEAN_LOW_PRECISION
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Missing,
    Place,
    Severity,
    Verdict,
    finding,
    healthy,
    likely,
    not_applicable,
    not_enough_data,
    suspected,
)

NAMES = {"old_logprobs": "old", "new_logprobs": "new", "sampler_logprobs": "the sampler's"}
LAGS = (0, 1, -1, 2, -2)
SHORTEST = 4  # tokens of a row: a shorter one is mostly edge
FEWEST_PAIRS = 16  # pairs of tokens to compare at each lag
UNCERTAIN = 0.1  # |log-prob| of a token that says where it stands: where the policy is certain all tokens have 0
LARGE_DIFFERENCE = 0.05  # mean difference in place that is worth a word
NEARER = 0.1  # moved, they must be ten times nearer than in place; unrelated numbers differ as much at any lag
ODD_ROW = 10.0  # times the median of the rows' mean differences: a row that stands out
LEAST_CORRELATION = 0.5  # correlation in place below which the numbers are of something else
LOWER = (
    1.0  # nats per token below the model's own, as an unshifted logit scores; other rows' numbers have the same mean
)
ELEMENTWISE = frozenset(
    "neg mul sub add div exp expm1 minimum maximum clamp where cast view squeeze phi detach".split()
)


class Fit(NamedTuple):
    lag: int
    mean: float  # mean |recorded[t] - truth[t + lag]|
    pairs: int


def check_batch(batch: Batch) -> Verdict:
    facts, compared = [], False
    for side, truth in _pairs(batch):
        fits = _fits(batch, side, truth)
        if not fits:
            continue
        compared = True
        best = min(fits, key=lambda fit: fit.mean)
        facts.append(Fact(f"mean |{NAMES[side]} - {_owner(truth)}| in place", fits[0].mean, step=batch.step))
        if best.lag and best.mean < min(NEARER * fits[0].mean, MEAN_LOW_PRECISION) and fits[0].mean > LARGE_DIFFERENCE:
            where = f"{abs(best.lag)} token{'s' if abs(best.lag) > 1 else ''} {'later' if best.lag > 0 else 'earlier'}"
            return finding(
                f"{NAMES[side]} log-probs are shifted: that of token t is {_owner(truth)} of the token {where} (mean "
                f"difference {best.mean:.2g} there, {fits[0].mean:.2g} in place)",
                facts[-1],
                Fact(f"mean |{NAMES[side]} - {_owner(truth)}| moved by {best.lag:+d}", best.mean),
                confidence=Confidence.PROVEN if truth == "plain_logprobs" else Confidence.LIKELY,
            )
        still = side != "new_logprobs" or batch.numbers.get("update") == 0  # later updates move far away
        unrelated = _unrelated(batch, side, truth) if truth == "plain_logprobs" and still else None
        if unrelated is not None:
            return unrelated
        if (odd := _odd_row(batch, side, truth)) is not None:
            return odd
    if not compared:
        return not_enough_data(f"{FEWEST_PAIRS} log-probs below -{UNCERTAIN} in rows of {SHORTEST} tokens or more")
    foreign = not_the_models_own(batch)
    if foreign is not None:
        side, gap = foreign
        return not_applicable(
            f"{side} log-probs are {gap.mean:.2g} off the model's own on average, in place and moved: "
            "see engine_mismatch"
        )
    return healthy(f"log-probs stand at their own tokens{not_looked_at(batch)}", *facts)


def check_source(program: Program) -> Iterator[Verdict]:
    spans = Spans(program)
    seen: set[Place] = set()
    for scoring in scorings(program):
        distance = _distance(spans, scoring)
        if distance is None or scoring.value.place in seen:
            continue
        seen.add(scoring.value.place)
        if distance == 1:
            yield healthy("the log-prob of a token is taken from the output before it", places=(scoring.value.place,))
            continue
        where = "at its own position" if distance == 0 else f"{abs(distance - 1)} positions off"
        yield suspected(
            f"{scoring.value.shown} picks the log-prob of a token from the output {where}: that output has "
            f"{'seen' if distance < 1 else 'not yet come to'} the token",
            places=(scoring.value.place, scoring.logits.place, scoring.tokens.place),
            why=program.kinds.why(scoring.value),
        )
    yield from _of_masks(program, spans)


def _distance(spans: Spans, scoring: Scoring) -> int | None:
    """How many positions a token stands behind the output that scores it; None where the text does not say."""
    picks = scoring.value.op in ("gather", "take_along_dim", "index")
    source = scoring.value.input if picks and scoring.value.input is not None else scoring.logits
    logits, tokens = spans.of(source), spans.of(scoring.tokens)
    single = spans.at(scoring.tokens) if scoring.value.op == "index" else None
    if single is not None:
        return _distance_of_one(spans, scoring, single)
    start = spans.located(tokens, logits.root)
    if start is None:
        return None
    first, end = _picked(spans, scoring, logits)
    if constant(plus(plus(tokens.end, tokens.start, -1), plus(end, first, -1), -1)) is None:
        return None
    return constant(plus(start, first, -1))


def _picked(spans: Spans, scoring: Scoring, logits: Span) -> tuple[Linear, Linear]:
    """The outputs that are picked from: all of the span, or x[torch.arange(start, end), tokens]."""
    keys = scoring.value.keys if scoring.value.op == "index" else []
    counted = peel(keys[0], ("cast", "moved")) if len(keys) == 2 else None
    if counted is None or counted.op != "arange" or "step" in counted.arguments:
        return logits.start, logits.end
    start, end = counted.argument("start"), counted.argument("end")
    if end is None:
        start, end = None, start
    first = plus(logits.start, spans.linear(start)) if start is not None else logits.start
    return first, plus(logits.start, spans.linear(end)) if end is not None else logits.end


def _distance_of_one(spans: Spans, scoring: Scoring, token: tuple[Value, Linear]) -> int | None:
    """x[t - 1, ids[i, t]], in a loop over tokens."""
    source, keys = scoring.value.input, scoring.value.keys[:-1]
    if source is None:
        return None
    span = spans.of(source)
    keys = keys if span.is_row else keys[1:]
    root, position = token
    if span.root is not root or len(keys) != 1 or keys[0].op == "slice":
        return None
    return constant(plus(position, plus(span.start, spans.linear(keys[0])), -1))


def _pairs(batch: Batch) -> list[tuple[str, str]]:
    """(whose log-probs, whose they should be), of the same weights: a later update asks a model that moved since."""
    has_plain = batch.get("plain_logprobs") is not None
    if not has_plain and batch.get("sampler_logprobs") is None:
        raise Missing("plain_logprobs or sampler_logprobs")
    if not has_plain:
        pairs = [("old_logprobs", "sampler_logprobs"), ("new_logprobs", "sampler_logprobs")]
    elif batch.numbers.get("update", 0) == 0:
        pairs = [(name, "plain_logprobs") for name in NAMES]
    else:
        pairs = [("new_logprobs", "plain_logprobs"), ("old_logprobs", "sampler_logprobs")]
    known = [pair for pair in pairs if all(batch.get(name) is not None for name in pair)]
    if not known:
        raise Missing("old_logprobs")
    return known


def _fits(batch: Batch, side: str, truth: str) -> list[Fit]:
    """By lag, in place first; empty where there is too little to compare."""
    inside_BT = _inside(batch)
    side_BT, truth_BT = batch.need(side, truth)
    fits: list[Fit] = []
    for lag in LAGS:
        here, there = (slice(0, -lag), slice(lag, None)) if lag > 0 else (slice(-lag, None), slice(0, lag or None))
        pairs_BT = inside_BT[:, here] & inside_BT[:, there]
        ours_BT, theirs_BT = side_BT[:, here], truth_BT[:, there]
        pairs_BT = pairs_BT & ((ours_BT < -UNCERTAIN) | (theirs_BT < -UNCERTAIN))
        distance_N = np.abs(ours_BT - theirs_BT)[pairs_BT]
        distance_N = distance_N[np.isfinite(distance_N)]
        if len(distance_N) < FEWEST_PAIRS:
            return fits if fits and lag not in (0, 1, -1) else []
        fits.append(Fit(lag, float(distance_N.mean()), len(distance_N)))
    return fits


def _odd_row(batch: Batch, side: str, truth: str) -> Verdict | None:
    """One row may be shifted where the others are not: the worst row decides. None where no row stands out."""
    inside_BT = _inside(batch)
    side_BT, truth_BT = batch.need(side, truth)
    both_BT = inside_BT & np.isfinite(side_BT) & np.isfinite(truth_BT)
    apart_BT = np.where(both_BT, np.abs(np.where(both_BT, side_BT, 0.0) - np.where(both_BT, truth_BT, 0.0)), 0.0)
    mean_B = apart_BT.sum(axis=1) / np.maximum(both_BT.sum(axis=1), 1)
    row = int(np.argmax(mean_B))
    usual = float(np.median(mean_B[both_BT.any(axis=1)])) if both_BT.any() else 0.0
    if mean_B[row] <= max(LARGE_DIFFERENCE, ODD_ROW * usual):
        return None
    fact = Fact(
        f"mean |{NAMES[side]} - {_owner(truth)}| of the worst row", float(mean_B[row]), step=batch.step, row=row
    )
    for lag in LAGS[1:]:
        here, there = (slice(0, -lag), slice(lag, None)) if lag > 0 else (slice(-lag, None), slice(0, lag))
        pairs_T = both_BT[row, here] & both_BT[row, there]
        moved_N = np.abs(side_BT[row, here] - truth_BT[row, there])[pairs_T]
        if len(moved_N) >= SHORTEST and moved_N.mean() < min(NEARER * mean_B[row], MEAN_LOW_PRECISION):
            return finding(
                f"{NAMES[side]} log-probs of row {row} are shifted: that of token t is {_owner(truth)} of token "
                f"t {lag:+d} (mean difference {moved_N.mean():.2g} there, {mean_B[row]:.2g} in place)",
                fact,
                Fact(f"mean |{NAMES[side]} - {_owner(truth)}| moved by {lag:+d}", float(moved_N.mean())),
                confidence=Confidence.PROVEN if truth == "plain_logprobs" else Confidence.LIKELY,
            )
    return not_applicable(
        f"{NAMES[side]} log-probs of row {row} are {mean_B[row]:.2g} off {_owner(truth)} on average, in place and moved"
        f", where half of the rows are at most {usual:.2g} off: no shift, but not in order; see row_provenance and "
        "law_of_scoring"
    )


def _unrelated(batch: Batch, side: str, truth: str) -> Verdict | None:
    side_BT, truth_BT = batch.need(side, truth)
    both_BT = _inside(batch) & np.isfinite(side_BT) & np.isfinite(truth_BT)
    side_N, truth_N = side_BT[both_BT], truth_BT[both_BT]
    lower = float(np.median(truth_N - side_N))  # a few absurd numbers are another illness
    if lower < LOWER or min(side_N.std(), truth_N.std()) == 0:
        return None
    alike = float(np.corrcoef(side_N, truth_N)[0, 1])
    if alike > LEAST_CORRELATION:
        return None
    return finding(
        f"{NAMES[side]} log-probs are {lower:.2g} below the model's own at most tokens and unlike them (correlation "
        f"{alike:.2f}): the logits were probably not shifted against the tokens",
        Fact(f"median of the model's - {NAMES[side]}", lower, LOWER, batch.step),
        Fact("correlation of the two", alike, LEAST_CORRELATION),
        confidence=Confidence.LIKELY,
    )


def _inside(batch: Batch) -> Array:
    inside_BT = loss_tokens(batch) & ~rows_of_others(batch)[:, None]
    long_enough_B1: Array = inside_BT.sum(axis=1, keepdims=True) >= SHORTEST
    return np.logical_and(inside_BT, long_enough_B1)


def _owner(truth: str) -> str:
    return "the model's" if truth == "plain_logprobs" else "the sampler's"


def _of_masks(program: Program, spans: Spans) -> Iterator[Verdict]:
    """Masks that are laid out like the tokens and multiply log-probs of other tokens than they mean."""
    by_value = {scoring.value: scoring for scoring in scorings(program)}
    seen: set[Place] = set()
    for product in program.of("mul"):
        sides = product.inputs[:2]
        for weighed, mask in (sides, sides[::-1]) if len(sides) == 2 else ():
            place = spans.of(mask)
            if place.root.op not in BUILT or product.place in seen:
                continue
            scoring = next((by_value[part] for part in _elements_of(weighed) if part in by_value), None)
            if scoring is None or (tokens := spans.of(scoring.tokens)).root is not place.root:
                continue
            off = constant(plus(tokens.start, place.start, -1))
            longer = constant(plus(plus(tokens.end, place.end, -1), plus(tokens.start, place.start, -1), -1))
            if not off or longer != 0:
                continue
            seen.add(product.place)
            yield likely(
                f"{mask.shown} is laid out like the tokens, and {product.place.text} lays its entries on log-probs of "
                f"tokens {abs(off)} {'later' if off > 0 else 'earlier'}",
                places=(_cut_of(mask), product.place, scoring.value.place),
                why=program.kinds.why(scoring.value),
            )


def _cut_of(mask: Value) -> Place:
    """Where the positions of a mask were chosen."""
    layers = walk(mask, main_input, until=lambda layer: layer.op not in ("index", "cast"))
    cuts = (cut for cut in layers if cut.op == "index" and any(key.op == "slice" and key.arguments for key in cut.keys))
    return next(cuts, mask).place


def _elements_of(value: Value) -> Iterator[Value]:
    """The values whose element at one position makes the element there."""

    def elements(whole: Value) -> list[Value]:
        if whole.op in ELEMENTWISE:
            return whole.inputs
        is_of_rows = whole.op == "index" and len(whole.keys) == 1 and whole.keys[0].op != "slice"
        return list(main_input(whole)) if is_of_rows else []

    return walk(value, elements)


def _moved(lag: int) -> Evidence:
    """What the model and the sampler say of token t + lag is what the trainer holds at t."""
    batch = healthy_batch()
    mask_BT = batch.arrays["mask"]
    edge_BT = -np.random.default_rng(4).exponential(1.2, size=mask_BT.shape)
    inside_BT = np.roll(mask_BT, lag, axis=1) & mask_BT & (np.arange(mask_BT.shape[1]) >= lag)
    names = ("plain_logprobs", "plain_raw_logprobs", "sampler_logprobs")
    moved = {
        name: np.where(mask_BT, np.where(inside_BT, np.roll(batch.arrays[name], lag, axis=1), edge_BT), 0.0)
        for name in names
    }
    return of_batch(edit_batch(batch, **moved))


SICK = LOOP.replace("prompts.shape[1] - 1:-1] / T", "prompts.shape[1]:] / T")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The outputs one position before the tokens; a mask on the side of the tokens."""
    for start in (*others[:1], spot):
        for part in start.parts():
            for sliced in part.all(ast.Subscript):
                index = sliced.node.slice
                axis = index.elts[1] if isinstance(index, ast.Tuple) and len(index.elts) > 1 else None
                if not isinstance(axis, ast.Slice) or axis.step is not None:
                    continue
                along = sliced.child(axis)
                if start is not spot and axis.lower is not None and axis.upper is None:
                    lower = along.child(axis.lower).source
                    yield along.becomes(":-1" if lower == "1" else f"{lower} - 1 : -1")
                elif start is spot and axis.lower is None and along.source.replace(" ", "") == ":-1":
                    yield along.becomes("1:")


ILLNESS = illness(
    __name__,
    code="ALGN01",
    severity=Severity.FATAL,
    summary="log-probs belong to the previous or the next token",
    fix="Take the log-prob of token t from output t - 1: shift logits and targets against each other exactly once.",
    symptoms=(
        "log-probs are shifted by one token",
        "off by one in log-probs",
        "model learns garbage, log-probs very low",
    ),
    sick=lambda: _moved(1),
    well=lambda: _moved(0),
    scripts=Scripts(SICK, LOOP),
    explains=frozenset({"SAMP06", "SAMP01", "SYNC01", "RAT01", "RAT07", "KL05", "ALGN09", "ALGN10"}),
)

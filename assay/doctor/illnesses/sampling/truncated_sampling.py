"""
## What it checks
Sampling with top_k, top_p or min_p draws from a distribution that was cut and renormalised. Its log-probs are higher
than the model's own by the log of the surviving probability. The check compares old with the sampler's numbers: below
them at every token, and exp(old - sampler) with a mean below 1, is what truncation leaves. A temperature below 1 that
the trainer leaves out can look the same: see below.

## Why it hurts
The trained distribution is not the sampled one. Importance weights old / sampler are all below 1 (top_p = 0.95 gives
0.95, top_k = 50 was seen to give 0.17), so the gradient shrinks with the mass that was cut. Tokens that could not be
sampled keep their probability without ever being judged.

## How to fix it
Sample without truncation, or renormalise the trainer's log-probs over the same tokens. Say the settings explicitly:
a model's own generation config may bring top_k = 50 with it.

    # before
    generation = GenerationConfig(do_sample=True, top_k=50, top_p=0.95)
    # after
    generation = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, min_p=None, repetition_penalty=1.0)

## When it is wrong
Where the policy is sharp, sampling at a temperature below 1 that old does not have also lies above old at nearly every
token; where the model can be asked, SAMP01 distinguishes the two. An engine that reports the raw model's log-probs
hides the cut; then this check sees nothing. A correction by importance weights does not repair truncation: it only
scales the gradient.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GENERATE
from assay.doctor.facts.logprobs import both_finite, logprobs_before_update
from assay.programs.edits import WHOLE, Spot
from assay.programs.facts.kinds import SCORES, Kind
from assay.programs.facts.origin import is_network_call
from assay.programs.facts.sampling.banned_tokens import is_minus_infinity
from assay.programs.facts.sampling.draws import is_greedy, settings_of, shown_number, trained_draws, weights_of
from assay.programs.facts.sampling.scoring import is_off, number_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.draws import (
    MOST_DRAWS,
    cut_settings,
    draw_weights,
    is_trained_on,
    scores_are_cut,
    shown_settings,
)
from assay.programs.run.roles import is_corrected
from assay.programs.run.watched import WatchedRun, spot_of
from assay.programs.walk import main_input, peel, walk
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, likely, not_enough_data

OF_VOCABULARY = (*SCORES, Kind.PROBABILITIES, Kind.LOG_SOFTMAX)
FEWEST_TOKENS = 16  # tokens
ABOVE = 1e-3  # old above sampler by more than this is not float32 rounding
ABOVE_LOW_PRECISION = 0.2  # in bfloat16 single tokens are off by more: SHARE lets them
SHARE = 0.02  # of tokens that may still lie above: under truncation none does
LEAST_MISSING = 0.002  # of missing mass; float32 rounding leaves 1e-5
LEAST_MISSING_LOW_PRECISION = 0.03  # bfloat16 noise has a mean of its own
ERRORS = 4.0  # standard errors that the missing mass must exceed
SILENT = 0.5  # share of tokens without any difference above which another token's log-prob is likelier: see ALGN09
MOST_BEHIND = 600  # values behind a mask or a logit
_VARIES = frozenset("parameter call method le lt ge gt eq ne setitem element".split())
_SCORED = ("input", "output", "logits", "0")
_LEAVES_OUT = frozenset("masked_fill where setitem add sub phi in_place".split())


def check_batch(batch: Batch) -> Verdict:
    old = logprobs_before_update(batch)
    inside_BT = both_finite(batch, old, "sampler_logprobs")
    old_BT, sampler_BT = batch.need(old, "sampler_logprobs")
    difference_N = (old_BT - sampler_BT)[inside_BT]
    if len(difference_N) < FEWEST_TOKENS:
        return not_enough_data(f"log-probs of {FEWEST_TOKENS} loss tokens")
    is_float32 = batch.settings.get("dtype") == "float32"
    weights_N = np.exp(np.minimum(difference_N, 20.0))
    mass, error = float(weights_N.mean()), float(weights_N.std() / math.sqrt(len(weights_N)))
    above = float((difference_N > (ABOVE if is_float32 else ABOVE_LOW_PRECISION)).mean())
    least = LEAST_MISSING if is_float32 else LEAST_MISSING_LOW_PRECISION
    settings = _truncation(batch)
    facts = (
        Fact("mean of exp(old - sampler)", mass, 1.0 - max(least, ERRORS * error), batch.step),
        Fact("share of tokens with old above sampler", above, SHARE),
    )
    if mass >= 1.0 - max(least, ERRORS * error) or above > SHARE:
        return healthy("the sampler's log-probs are those of the whole distribution", *facts)
    if not settings and _is_another_token(difference_N):
        return healthy(
            "the sampler's log-probs are too high at some tokens and right at most: not a truncation", *facts
        )
    if settings:
        kept = " although training is meant to renormalise likewise" if batch.settings.get("support_kept") else ""
        return finding(
            f"sampling is truncated ({settings}) and the trainer's log-probs are not{kept}: exp(old - sampler) is "
            f"{mass:.3f} on average",
            *facts,
        )
    return finding(
        f"sampling looks truncated (top_k, top_p or the like): old is below the sampler's log-prob at {1 - above:.0%} "
        f"of the tokens and exp(old - sampler) is {mass:.3f} on average",
        *facts,
        # a sharp policy at a temperature below 1 looks the same: all that it samples are its likeliest tokens
        confidence=Confidence.LIKELY if batch.settings.get("temperature") == 1.0 else Confidence.POSSIBLE,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    seen: set[int] = set()
    for trained in trained_draws(program, same_pass=True):
        draw = trained.draw
        if id(draw) in seen or _cut(program, trained.scoring.logits) is not None:
            continue
        seen.add(id(draw))
        if draw.op == "generate":
            yield from _check_settings(program, draw)
            continue
        weights = weights_of(draw)
        cut = _cut(program, weights) if weights is not None and not is_greedy(draw) else None
        if cut is not None:
            yield finding(
                f"tokens are drawn from what {cut.shown} leaves of the distribution, and the log-probs in the loss are "
                "those of all of it",
                places=(cut.place, trained.scoring.normaliser.place),
                why=program.kinds.why(trained.scoring.value),
            )
            continue
        ban = _ban(program, weights) if weights is not None and trained.is_linked and not is_greedy(draw) else None
        if ban is not None and not _may_be_banned(trained.scoring.logits):
            yield likely(
                f"{ban.place.text} takes choices away before the draw, and the log-probs in the loss are those of all "
                "choices",
                places=(ban.place, trained.scoring.normaliser.place),
                why=program.kinds.why(trained.scoring.value),
                fix="Keep the mask of the choices beside each draw, and apply it to the logits that are scored.",
            )
        elif weights is not None:
            yield healthy("tokens are drawn from the whole distribution", places=(draw.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for call in run.generations:
        asked = {name: setting for name, setting in cut_settings(run, call).items() if name in call.stated}
        is_sampled = call.config.get("do_sample") and is_trained_on(run, call.value)
        if asked and is_sampled and not is_corrected(run.backwards) and not scores_are_cut(run):
            yield finding(
                f"generate() ran with {shown_settings(asked)}, and the log-probs in the loss are those of the whole "
                "distribution",
                places=(call.value.place,),
            )
    cuts = {row for weights in draw_weights(run) for row in weights.cut}
    trained = [draw.value for draw in run.samplings[:MOST_DRAWS] if is_trained_on(run, draw.value)]
    if len(cuts) > 1 and trained and not scores_are_cut(run) and not is_corrected(run.backwards):
        yield finding(
            f"up to {max(map(len, cuts))} tokens of the vocabulary had no chance to be drawn, others in each draw, "
            "and the log-probs in the loss are those of the whole distribution",
            places=(trained[0].place,),
        )
    yield from _barred_actions(run)


def _barred_actions(run: WatchedRun) -> Iterator[Verdict]:
    """Actions that are taken out where one is drawn, and not where its log-prob is computed."""
    for update in run.updates:
        if update.barred is None or is_corrected(update.backwards):
            continue
        rows, most, mass = update.barred
        fact = Fact("probability in the loss of actions that could not be drawn", mass, LEAST_MISSING)
        if mass < LEAST_MISSING:
            yield healthy(f"{rows} actions were drawn with others taken out, and are scored the same way", fact)
            continue
        drawn = [draw.value for draw in run.samplings if spot_of(draw.value) in update.sampled_at]
        yield finding(
            f"{rows} trained actions were drawn while up to {most} others had no chance, and the log-probs in the loss "
            f"give these others a probability of {mass:.2f} on average",
            fact,
            places=tuple(value.place for value in (*drawn[:1], update.pieces[0].new)),
            fix="Take the same actions out of the logits when the log-probs of the loss (old and new) are computed: "
            "keep the mask beside the states.",
        )


def _truncation(batch: Batch) -> str:
    off = {"top_k": (0, -1, None), "top_p": (1, None), "min_p": (0, None)}
    stated = {name: batch.settings.get(name) for name in off}
    return ", ".join(f"{name} = {value}" for name, value in stated.items() if value not in off[name])


def _is_another_token(difference_N: np.ndarray) -> bool:
    """Equal at most tokens and far below at the others: the sampler's number belongs to another token."""
    differing_N = np.abs(difference_N) > 0.05
    return bool((~differing_N).mean() > SILENT and np.median(np.abs(difference_N[differing_N])) > math.log(2))


def _check_settings(program: Program, draw: Value) -> Iterator[Verdict]:
    settings = settings_of(program, draw)
    do_sample = settings.given.get("do_sample")
    if settings.engine != "vllm" and do_sample is not None and do_sample.constant is False:
        return
    cuts = settings.truncation()
    if cuts:
        named = ", ".join(f"{name} = {shown_number(value)}" for name, value in cuts.items())
        where = next(iter(cuts.values())).place
        yield finding(
            f"tokens are drawn with {named}, and the log-probs in the loss are those of the whole distribution",
            places=(where if settings.config is None else settings.config.place, draw.place),
        )
    elif not settings.is_open and settings.given.get("top_k") is not None:
        yield healthy("tokens are drawn from the whole distribution", places=(draw.place,))


def _cut(program: Program, value: Value | None) -> Value | None:
    """The top-k, sort or threshold that takes tokens away between a network and the weights of a draw."""

    def is_end(value: Value) -> bool:
        return is_network_call(value, program.kinds) or is_off(value)

    def weights(value: Value) -> list[Value]:
        return [part for part in value.inputs if not program.kinds.is_a(part, Kind.SAMPLED)]

    for current in walk(value, weights, until=is_end) if value is not None else ():
        if is_end(current):
            continue
        of_vocabulary = program.kinds.is_a(current.input, *OF_VOCABULARY)
        if current.op == "topk" and of_vocabulary and _number(current.argument("k")) > 0:
            return current
        is_running_sum = current.op == "cumsum" and program.kinds.is_a(current.input, Kind.PROBABILITIES)
        if is_running_sum and _has_bound(current):
            return current
        of_vocabulary |= program.kinds.is_a(current.argument("other"), *OF_VOCABULARY)
        if current.op in ("lt", "le", "gt", "ge") and of_vocabulary and not _is_of_topk(current):
            return current
    return None


def _ban(program: Program, weights: Value) -> Value | None:
    """logits.masked_fill(~offered, -inf): other choices in each draw. A column of flags is of rows that have ended."""
    for current in walk(weights, main_input, until=lambda value: is_network_call(value, program.kinds)):
        mask = current.argument("mask") if current.op == "masked_fill" else None
        if mask is None or not is_minus_infinity(current.argument("value")):
            continue
        flags = peel(mask, ("not", "logical_not", "cast"))
        is_column = flags.op == "unsqueeze" or any(key.constant is None for key in flags.keys if flags.op == "index")
        behind = list(islice(walk(flags), MOST_BEHIND))
        is_fixed = not any(value.op in _VARIES for value in behind)
        if not is_column and not is_fixed and not any(value is current.input for value in behind):
            return current
    return None


def _may_be_banned(logits: Value) -> bool:
    """Whether anything on the way to scored logits could leave choices out, inside of the network too."""

    def inside(value: Value) -> list[Value]:
        return [value.arguments[name] for name in _SCORED if name in value.arguments]

    return any(value.op in _LEAVES_OUT for value in islice(walk(logits, inside), MOST_BEHIND))


def _is_of_topk(comparison: Value) -> bool:
    """Whether the bound is one of the best values: then how many there are decides."""
    shells = ("index", "attribute", "unsqueeze", "cast", "expand")
    return any(peel(side, shells).op in ("topk", "sort") for side in comparison.inputs)


def _number(value: Value | None) -> float:
    """A setting as a number; 0 where the text does not say one."""
    if value is None:
        return 0.0
    if value.op == "minimum":  # min(top_k, vocabulary)
        return max(_number(value.input), _number(value.argument("other")))
    return number_of(value) or 0.0


def _has_bound(running: Value, depth: int = 4) -> bool:
    """Whether a running sum of probabilities is compared with a number below 1."""
    for user in running.users:
        if user.op in ("lt", "le", "gt", "ge"):
            bounds = [number_of(bound) for bound in user.inputs if bound is not running]
            if any(bound is not None and 0 < bound < 1 for bound in bounds):
                return True
        elif depth and user.op in ("sub", "index", "cast", "phi", "roll", "pad") and _has_bound(user, depth - 1):
            return True
    return False


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """All of the distribution is drawn from."""
    named = re.search(r"with (\w+) = ", verdict.message)
    wanted = WHOLE.get(named[1]) if named else None
    if wanted is None or named is None:
        return
    yield spot.becomes(wanted) if isinstance(spot.node, ast.Constant) else None
    for call in (spot, *others):
        given = call.argument(named[1])
        yield given.becomes(wanted) if given is not None else None


def sick() -> Evidence:
    """One tenth of what the sampled token leaves was cut away, at every token."""
    batch = healthy_batch(top_p=0.9)
    old_BT = batch.arrays["old_logprobs"]
    surviving_BT = 1.0 - 0.1 * (1.0 - np.exp(old_BT))
    sampler_BT = np.where(batch.arrays["mask"], old_BT - np.log(surviving_BT), 0.0)
    return of_batch(edit_batch(batch, sampler_logprobs=sampler_BT))


ILLNESS = illness(
    __name__,
    code="SAMP02",
    severity=Severity.HARMFUL,
    summary="sampling is truncated (top_k, top_p, min_p) and training is not",
    fix="Switch truncation off (top_k = 0, top_p = 1, min_p = 0), or renormalise the trainer's log-probs over the same "
    "tokens.",
    symptoms=(
        "log-probs do not match with top_p or top_k",
        "ratio is biased with top_k top_p min_p sampling",
    ),
    sick=sick,
    well=lambda: of_batch(
        healthy_batch(top_p=0.9, support_kept=True)
    ),  # the same setting; the trainer renormalises over the same tokens
    scripts=Scripts(GENERATE.replace("top_k=0, top_p=1.0", "top_k=0, top_p=0.9"), GENERATE),
    explains=frozenset({"SAMP06", "SYNC01", "RAT07", "ALGN09"}),
)

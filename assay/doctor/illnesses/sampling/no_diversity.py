"""
## What it checks
The rows of a group are independent samples, so they differ, unless the policy is certain of one answer. The check looks
for groups whose completions are all equal, token by token, and asks how many there should be. A completion of
probability p is met by the other G - 1 rows with p to the power of G - 1: its mean over the rows is the expected share.
All groups count in the test, those that differ too.

## Why it hurts
Equal completions get equal rewards. Their advantages are 0, the group teaches nothing, and every rollout but one was
paid for in vain. The loss is 0 and the run looks merely stuck.

## How to fix it
Sample: do_sample on, a temperature above 0, no top_k = 1, and no seed in the sampling parameters of a single request.

    # before: each copy of the prompt starts from the same random numbers
    parameters = SamplingParams(temperature=1.0, seed=0)
    outputs = engine.generate([prompt] * group_size, parameters)
    # after
    parameters = SamplingParams(temperature=1.0, n=group_size)
    outputs = engine.generate([prompt], parameters)

## When it is wrong
A solved task with short answers has groups of equal completions by right; the log-probs say so (p near 1) and the check
stays silent. Without log-probs it cannot know and says so. Log-probs of another distribution than the sampled one (of
temperature 1 where sampling was sharper, of the whole vocabulary where it was cut) make a common answer look rare: a
finding by such log-probs is only possible.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import SIZE, B, chosen_rows, healthy_batch, of_batch, surer
from assay.doctor.examples.scripts import GENERATE
from assay.doctor.facts.repeats import Completion, certainty, completions, groups_of, log_chances
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.sampling.draws import draws, is_greedy, settings_of, trained_draws
from assay.programs.facts.sampling.scoring import made_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Severity, State, Verdict, finding, healthy, not_applicable

NEARLY_ALL = 0.9  # of the groups: greedy decoding and one seed leave no group out
FEWER = 0.5  # of the share at hand is the most that may be expected: log-probs off by a little must not accuse
WAGERS = np.array([1.0, 0.99, 0.9, 0.7, 0.5, 0.3])  # see _log_evidence; 1 is for the case that all groups agree
STAKES = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])  # their weights in the mean
SHARE = 0.5  # of the groups without a second completion: fewer than this are a habit of the policy, not of the sampler
CHANCE = 1e-9  # that independent samples agree so: one step in a billion


def check_batch(batch: Batch) -> Verdict:
    groups = groups_of(batch)
    if not groups:
        return not_applicable("no group has two completions to compare")
    rows = completions(batch)
    alike = [group for group in groups if len({rows[row] for row in group}) == 1]
    share = len(alike) / len(groups)
    facts = [Fact("share of groups with one distinct completion", share, SHARE, batch.step)]
    if share < SHARE:
        return healthy(f"{len(groups) - len(alike)} of {len(groups)} groups have different completions", *facts)
    only_one = batch.settings.get("top_k") == 1
    chances_B = log_chances(batch)
    log_chance = min(
        -_log_evidence([len(group) for group in groups], [_agreed_chance(rows, group, chances_B) for group in groups]),
        0.0,
    )
    expected = _expected_share(groups, chances_B)
    facts.append(Fact("share that independent samples would leave", expected, FEWER * share))
    facts.append(Fact("log10 of the chance of this under sampling", log_chance / math.log(10), math.log10(CHANCE)))
    is_chance = log_chance > math.log(CHANCE) or expected > FEWER * share
    if is_chance and not only_one:
        return healthy(f"{len(alike)} of {len(groups)} groups agree on one completion: the policy is certain", *facts)
    first = min((group[0] for group in alike), key=lambda row: np.nan_to_num(chances_B[row]))
    likelihood = float(np.exp(chances_B[first]))
    facts.append(Fact("probability of the completion", likelihood, step=batch.step, row=first))
    cause = "top_k = 1 leaves one token to sample" if only_one else "greedy decoding, or one seed for every row"
    return finding(
        f"all completions are equal in {len(alike)} of {len(groups)} groups, where {expected * len(groups):.2g} are "
        f"expected; the policy gives one of these completions a probability of {likelihood:.2g}: {cause}",
        *facts,
        confidence=Confidence.PROVEN if only_one else _confidence(batch, share),
    )


def check_source(program: Program) -> Iterator[Verdict]:
    trained = trained_draws(program, same_pass=True)
    drawn = {id(pair.draw): pair.draw for pair in trained}
    if any(draw.op in ("multinomial", "sample", "rsample") for draw in draws(program)):
        drawn = {key: draw for key, draw in drawn.items() if not is_greedy(draw)}  # argmax of a mask, of a test
    verdicts = [verdict for draw in drawn.values() if (verdict := _check_draw(program, draw)) is not None]
    yield from [verdict for verdict in verdicts if verdict.state is State.HEALTHY] or verdicts
    behind = {id(value) for pair in trained for value in made_of(pair.scoring.tokens)}
    for value in program.of("repeat_interleave", "repeat"):
        if id(value) not in behind or value.input is None or not program.kinds.is_a(value.input, Kind.SAMPLED):
            continue
        source = next((part for part in made_of(value.input) if id(part) in drawn), None)
        if source is not None:
            yield finding(
                f"{value.shown} repeats drawn tokens: the rows of a group are copies of one completion",
                places=(value.place, source.place),
                why=program.kinds.why(value),
                fix="Repeat the prompts and draw for each of them, or pass num_return_sequences.",
            )


def _confidence(batch: Batch, share: float) -> Confidence:
    sure = certainty(batch)
    return Confidence.LIKELY if sure is Confidence.PROVEN and share < NEARLY_ALL else sure


def _agreed_chance(rows: list[Completion], group: list[int], chances_B: Array) -> float | None:
    """Log-probability of the completion that all rows of the group are; None if they differ."""
    return float(chances_B[group[0]]) if len({rows[row] for row in group}) == 1 else None


def _log_evidence(sizes: list[int], agreed: list[float | None]) -> float:
    """Log of a wager against independent sampling that wins on average nothing; exp(-it) bounds the chance.

    Of one group, 1 / p ** (G - 1) where its rows agree on a completion of probability p and 0 where they differ has
    the mean 1: the sum over completions of p ** G / p ** (G - 1). So has 1 - w + w times it, and so has the product
    over all groups, for each wager w, and a mean over several w. A mean of 1 exceeds 1 / c with a chance below c.

    >>> round(_log_evidence([4] * 9, [math.log(0.5)] * 9), 1)  # 27 ln 2 = 18.7, less what was staked on other cases
    18.3
    """
    logs_W = np.zeros(len(WAGERS))
    with np.errstate(divide="ignore"):
        kept_W = np.log1p(-WAGERS)
    for size, chance in zip(sizes, agreed, strict=True):
        if chance is None:
            logs_W = logs_W + kept_W
        elif math.isfinite(chance):  # without log-probs the group says nothing
            logs_W = logs_W + np.logaddexp(kept_W, np.log(WAGERS) - (size - 1) * chance)
    return float(np.logaddexp.reduce(logs_W + np.log(STAKES)))


def _expected_share(groups: list[list[int]], chances_B: Array) -> float:
    """The mean of p ** (G - 1) over sampled rows is the chance that the group agrees: the sum of p ** G."""
    shares = [np.exp((len(group) - 1) * chances_B[group]) for group in groups]
    known = [float(np.nanmean(share_G)) for share_G in shares if np.isfinite(share_G).any()]
    return float(np.mean(known)) if known else 1.0


def _check_draw(program: Program, draw: Value) -> Verdict | None:
    if is_greedy(draw):
        return finding(
            f"the tokens that are trained on are the likeliest ones ({draw.place.text}): nothing is drawn",
            places=(draw.place,),
            why=program.kinds.why(draw),
        )
    if draw.op != "generate":
        return healthy("tokens are drawn at random", places=(draw.place,))
    settings = settings_of(program, draw)
    temperature, top_k = settings.number("temperature"), settings.number("top_k")
    do_sample = settings.given.get("do_sample") or settings.inherited.get("do_sample")
    greedy = ""
    if settings.engine == "transformers" and do_sample is not None and do_sample.constant is False:
        greedy = "do_sample is False"
    elif temperature == 0 and settings.engine:
        greedy = "the temperature is 0"
    elif top_k == 1:
        greedy = "top_k is 1"
    if greedy:
        return finding(
            f"generate() makes the tokens that are trained on, and {greedy}: every completion of a prompt is the same",
            places=(draw.place, *((settings.config.place,) if settings.config is not None else ())),
        )
    if settings.engine != "transformers" or settings.is_open:
        return None
    if do_sample is None and settings.config is None:
        return finding(
            "generate() makes the tokens that are trained on and does not set do_sample=True: it takes the likeliest "
            "token unless the checkpoint's generation config says otherwise",
            confidence=Confidence.POSSIBLE,
            places=(draw.place,),
        )
    return healthy("generate() draws at random", places=(draw.place,)) if do_sample is not None else None


def _sick() -> Batch:
    """Every group holds its first completion four times; their probability is about one in a thousand."""
    return chosen_rows(healthy_batch(), [row - row % SIZE for row in range(B)])


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """do_sample=True; a draw in place of the likeliest token."""
    for call in (spot, *others):
        given = call.argument("do_sample")
        yield given.becomes("True") if given is not None else None
    about, torch = spot.receiver, spot.text.torch
    if spot.name == "generate":
        yield spot.with_argument("do_sample=True")
    if spot.name == "argmax" and about is not None and torch:
        squeezed = ".squeeze(-1)" if spot.axes and "keepdim" not in spot.axes else ""
        yield spot.becomes(f"{torch}.multinomial({about.source}, 1){squeezed}")
        yield spot.becomes(f"{torch}.multinomial({torch}.softmax({about.source}, dim=-1), 1){squeezed}")
    if isinstance(spot.node, ast.Attribute) and spot.node.attr == "indices" and torch:
        best = spot.child(spot.node.value)
        if best.name == "max" and best.receiver is not None:
            yield spot.becomes(f"{torch}.multinomial({best.receiver.source}, 1).squeeze(-1)")


ILLNESS = illness(
    __name__,
    code="SAMP04",
    severity=Severity.FATAL,
    summary="all completions of a group are equal although the policy is not certain",
    fix="Sample with a temperature above 0 (do_sample on, no top_k = 1) and without a seed a request.",
    symptoms=(
        "all completions are the same",
        "identical answers in a group",
        "no diversity in samples",
        "do_sample is off, greedy",
    ),
    sick=lambda: of_batch(_sick()),
    well=lambda: of_batch(surer(_sick(), 1e-3)),  # equal completions of a policy that is certain of them
    scripts=Scripts(GENERATE.replace("do_sample=True", "do_sample=False"), GENERATE),
    explains=frozenset({"ADV09", "LOSS05", "MET05", "MET07", "REW01"}),
)

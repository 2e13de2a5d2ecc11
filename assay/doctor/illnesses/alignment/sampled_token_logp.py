"""
## What it checks
The sampler's log-prob of a token is that of the token that was sampled. Engines return log-probs of several candidates
a position, the likeliest often first; who takes the first gets the log-prob of the likeliest token. The check compares
with the trainer's own log-probs: equal where the sampled token is the likeliest, and too high everywhere else.

## Why it hurts
The importance weight trainer / sampler is then far below 1 for every token that was not the likeliest. A correction by
these weights removes exactly the tokens that explore, and the mismatch that is logged means nothing.

## How to fix it
Look the log-prob up by the id of the sampled token.

    # before: the first entry is the likeliest candidate
    logprob = next(iter(candidates.values())).logprob
    # after
    logprob = candidates[token_id].logprob

## When it is wrong
Truncated sampling raises the sampler's log-probs too, but by an amount that does not depend on the token; the check
tells the two apart by whether sampler and trainer still move together where they differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.facts.logprobs import both_finite
from assay.doctor.facts.rounding import dtype_of
from assay.programs.edits import Spot
from assay.programs.facts.kinds import PASSES, SCORES, Kind
from assay.programs.facts.sampling.draws import draws, is_greedy
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.collections import table_of_values
from assay.programs.read.things import Table
from assay.programs.walk import descendants, main_input, peel, walk
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, likely

LIMIT = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}  # of |sampler - trainer|: rounding leaves less
FEWEST_TOKENS = 8  # tokens that differ: fewer are not a pattern
NEARLY_ALL = 0.98  # of them must be too high
LARGE_EXCESS = 0.1  # nats: the median excess; that of truncated sampling is mostly smaller
MOVES_TOGETHER = 0.5  # slope of sampler over trainer: 1 if shifted, near 0 if it belongs to another token


def check_batch(batch: Batch) -> Verdict:
    has_plain = batch.get("plain_logprobs") is not None
    witness = "plain_logprobs" if has_plain else "old_logprobs"
    inside_BT = both_finite(batch, "sampler_logprobs", witness)
    sampler_BT, witness_BT = batch.need("sampler_logprobs", witness)
    limit = LIMIT[dtype_of(batch)]
    off_BT = inside_BT & (np.abs(np.where(inside_BT, sampler_BT - witness_BT, 0.0)) > limit)
    sampler_N, witness_N = sampler_BT[off_BT], witness_BT[off_BT]
    count, total = int(off_BT.sum()), int(inside_BT.sum())
    fact = Fact("tokens whose sampler log-prob differs from the trainer's", count)
    if count < FEWEST_TOKENS or count == total or not _is_of_the_likeliest(sampler_N, witness_N):
        return healthy("the sampler's log-probs are not those of other tokens", fact)
    entropy_BT = batch.get("entropy")
    # -entropy is the mean log-prob, which the likeliest token's cannot be below
    is_bounded = entropy_BT is None or bool((sampler_N >= -entropy_BT[off_BT] - limit).mean() >= NEARLY_ALL)
    row, token = np.argwhere(off_BT)[0]
    return finding(
        f"the sampler's log-probs of {count} of {total} tokens are too high, by {np.median(sampler_N - witness_N):.2g} "
        "in the median, and right elsewhere: they look like those of the likeliest token, not of the sampled one",
        Fact("sampler log-prob", float(sampler_BT[row, token]), None, batch.step, int(row), int(token)),
        Fact("log-prob of the sampled token", float(witness_BT[row, token])),
        fact,
        confidence=Confidence.PROVEN if has_plain and is_bounded else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    yield from _first_entries(program)
    yield from _any_entries(program)
    drawn = [draw for draw in draws(program) if not is_greedy(draw)]
    if not drawn:
        return
    for value in program.of("max", "amax", "topk"):
        known = program.kinds.of(value.input)
        over_vocabulary = known is not None and known.kind is Kind.LOG_SOFTMAX
        if not (over_vocabulary or _is_of_distribution(value.input)) or value.setting("dim", -1) not in (-1, 1, 2):
            continue
        if value.op == "topk" and value.setting("k") != 1:
            continue
        if _is_in_ratio(program, value):
            yield likely(
                f"{value.place.text} is the log-prob of the likeliest token, and a ratio takes it for the drawn one",
                places=(value.place, drawn[0].place),
            )


def _is_of_the_likeliest(sampler_N: Array, witness_N: Array) -> bool:
    """Whether each sampler log-prob can be that of a likelier token than the sampled one, at the same place."""
    excess_N = sampler_N - witness_N
    fits_N = (excess_N > 0) & (np.exp(sampler_N) + np.exp(witness_N) <= 1.01)  # two tokens share a probability of 1
    if fits_N.mean() < NEARLY_ALL or np.median(excess_N) < LARGE_EXCESS:
        return False
    spread = float(np.var(witness_N))
    slope = float(np.mean((sampler_N - sampler_N.mean()) * (witness_N - witness_N.mean()))) / max(spread, 1e-12)
    return slope < MOVES_TOGETHER


def _is_of_distribution(value: Value | None) -> bool:
    holder = value.input if value is not None and value.op == "attribute" and value.name == "logits" else None
    return holder is not None and holder.op == "categorical"


def _is_in_ratio(program: Program, value: Value) -> bool:
    """Whether its values, not its indices, are subtracted from log-probs of tokens."""
    for difference in descendants(value):
        if difference.op != "sub" or not any(user.op in ("exp", "mul", "clamp") for user in difference.users):
            continue
        sides = [side for side in (difference.input, difference.argument("other")) if side is not None]
        kinds = [known.kind for side in sides if (known := program.kinds.of(side)) is not None]
        scored = kinds.count(Kind.LOGPROBS)
        is_one_side = scored == 1 or any(_holds(side, value) for side in sides)
        if scored and is_one_side and not any(kind in SCORES for kind in kinds):
            return True
    return False


def _holds(side: Value, part: Value) -> bool:
    """Whether the numbers of one value stand in the other: through lists, tensors and slices, not through a network."""

    def inside(holder: Value) -> list[Value]:
        if holder.op in PASSES:
            return holder.inputs
        return list(main_input(holder)) if holder.op in ("index", "attribute", "leave") else []

    return part in walk(side, inside)


def _first_entries(program: Program) -> Iterator[Verdict]:
    """next(iter(entry.values())) of an engine's dictionaries of log-probs."""
    for value in program.of("element"):
        holder = value.input
        if holder is None or holder.op not in ("method", "values") or holder.name not in ("values", ""):
            continue
        if not _is_logprobs(holder.input) or any(loop.source is holder for loop in value.context.loops):
            continue
        requested = [call.setting("logprobs") for call in program.of("call") if call.name.endswith("SamplingParams")]
        if not any(isinstance(number, int) and number > 0 for number in requested):
            continue  # asked for none beside it, the engine reports the drawn token alone
        yield likely(
            f"{value.place.text} takes the first of a dictionary of log-probs, which need not be the drawn token's",
            places=(value.place,),
        )
    for value in program.of("index"):
        if _is_logprobs(value.input) and value.input is not None and value.input.op in ("element", "index"):
            yield healthy("a log-prob is looked up by its token", places=(value.place,))


def _any_entries(program: Program) -> Iterator[Verdict]:
    """The first or the greatest value of a dictionary {token: log-prob} that the script itself has filled."""
    for value in program.of("element", "max"):
        taken = value.input if value.op == "element" else value.argument("0")
        if taken is None or (value.op == "element" and value.name != "first"):
            continue
        holder = table_of_values(taken)
        if holder is None or not _holds_candidates(program, holder) or not _is_in_ratio(program, value):
            continue
        which = "first" if value.op == "element" else "greatest"
        yield likely(
            f"{value.place.text} takes the {which} of a dictionary of log-probs, which need not be the drawn token's",
            places=(value.place, holder.place),
        )


def _holds_candidates(program: Program, holder: Value) -> bool:
    """Whether a dictionary holds log-probs of several tokens of one position, under computed keys."""
    table = holder.thing
    if not isinstance(table, Table) or table.entries or not table.rest:
        return False
    several = len(table.rest) > 1 or len(table.rest[0].context.loops) > len(holder.context.loops)
    return several and any(program.kinds.is_a(entry, Kind.LOG_SOFTMAX, Kind.LOGPROBS) for entry in table.rest)


def _is_logprobs(value: Value | None) -> bool:
    """An element of the `logprobs` of an engine's output."""
    holder = peel(value, ("element", "index", "phi"), by=("input", "0"))
    return holder is not None and holder.op == "attribute" and holder.name in ("logprobs", "token_logprobs")


def _example(*, likeliest: bool) -> Evidence:
    """Every other token of a row is not the likeliest one at its place."""
    batch = healthy_batch()
    mask_BT, old_BT = batch.need("mask", "old_logprobs")
    random = np.random.default_rng(4)
    is_other_BT = mask_BT & (old_BT < np.log(0.4)) & (random.random(mask_BT.shape) < 0.5)
    likeliest_BT = np.log(random.uniform(0.42, 0.55, size=mask_BT.shape))
    sampler_BT = batch.arrays["sampler_logprobs"]
    if likeliest:
        sampler_BT = np.where(is_other_BT, likeliest_BT, sampler_BT)
    return of_batch(edit_batch(batch, sampler_logprobs=sampler_BT, entropy=np.where(mask_BT, 1.5, 0.0)))


SCRIPT_SICK = """
from vllm import LLM, SamplingParams

engine = LLM("tiny")
params = SamplingParams(n=8, temperature=1.0, logprobs=5, max_tokens=64)

def rollout(prompts):
    rows = []
    for request in engine.generate(prompts, params):
        for sample in request.outputs:
            found = [next(iter(entry.values())).logprob for entry in sample.logprobs]
            rows.append((list(sample.token_ids), found))
    return rows
"""
SCRIPT_WELL = SCRIPT_SICK.replace(
    "[next(iter(entry.values())).logprob for entry in sample.logprobs]",
    "[entry[token].logprob for token, entry in zip(sample.token_ids, sample.logprobs)]",
)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The log-prob of what was drawn, where a distribution can be asked for it."""
    drawn = others[0] if others else None
    if drawn is None or drawn.name != "sample" or not isinstance(drawn.statement.node, ast.Assign):
        return
    target = drawn.statement.node.targets[0]
    whole = spot.parent if isinstance(spot.parent.node, ast.Attribute) and spot.parent.node.attr == "values" else spot
    if isinstance(target, ast.Name) and drawn.receiver is not None:
        yield whole.becomes(f"{drawn.receiver.source}.log_prob({target.id})")


ILLNESS = illness(
    __name__,
    code="ALGN09",
    severity=Severity.HARMFUL,
    summary="the sampler's log-probs belong to the likeliest token, not to the sampled one",
    fix="Look the engine's log-prob up by the id of the sampled token; do not take the first candidate.",
    symptoms=(
        "log-prob of the argmax instead of the sampled token",
        "vLLM returns log-probs of the top token",
    ),
    sick=lambda: _example(likeliest=True),
    well=lambda: _example(likeliest=False),
    scripts=Scripts(SCRIPT_SICK, SCRIPT_WELL),
    explains=frozenset({"ALGN01", "MET07", "RAT07", "SAMP01", "SAMP02", "SAMP06", "SYNC01"}),
)

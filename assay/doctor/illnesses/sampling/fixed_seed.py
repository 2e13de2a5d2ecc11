"""
## What it checks
No two rows are drawn with the same random numbers. The check looks for completions that repeat: in a fixed pattern in
every group (the second half is the first half again, each row comes twice), or anywhere in the batch although the
policy gives the completion a probability below one in a hundred million.

## Why it hurts
A group of 8 with 4 different completions is a group of 4 that costs as much as 8. The baseline is a mean over repeats,
so the estimate is noisier than the group size promises, and more groups have no signal at all.

## How to fix it
Give every engine replica a seed of its own, derive the seed of a step from the step, and set no seed in the sampling
parameters of a request.

    # before: every replica starts from the same seed and answers the same prompts
    engine = LLM(model, seed=config.seed)
    # after
    engine = LLM(model, seed=config.seed + replica_rank)

## When it is wrong

Some trainers fill a batch up with copies of rows, to divide it among workers, or replay old rows: leave such rows out
of what is recorded. Short answers repeat by right; the check only counts repeats that the log-probs make improbable,
and it is only as sure as it is that these are of the distribution that was sampled from.
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
from assay.programs.facts.sampling.draws import draws, is_greedy, settings_of, trained_draws
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.draws import is_trained_on
from assay.programs.run.watched import GenerateCall, Sampling, WatchedRun, spot_of
from assay.programs.walk import ancestors
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Place, Severity, Verdict, finding, healthy, not_applicable

SHARE = 0.9  # of the groups that must show a pattern: a seed that is reused is reused everywhere
CHANCE = 1e-9  # that independent samples repeat so
RARE_CHANCE = 1e-8  # a completion less probable than this does not come twice among thousands of rows
FEWEST_REPEATS = 3  # of such repeats: one may be a prompt that was answered twice with a quotation
OF_TORCH = ("torch.", "transformers.", "accelerate.", "lightning", "pytorch_lightning")


def check_batch(batch: Batch) -> Verdict:
    groups = groups_of(batch)
    if not groups:
        return not_applicable("no group has two completions to compare")
    rows, chances_B = completions(batch), log_chances(batch)
    mixed = [group for group in groups if len({rows[row] for row in group}) > 1]  # the others are no_diversity's
    if not mixed:
        return not_applicable("every group holds one completion only: see no_diversity")
    for name, sources in _patterns(max(map(len, mixed))):
        fitting = [
            group for group in mixed if all(rows[row] == rows[group[sources[at]]] for at, row in enumerate(group))
        ]
        copies = [row for group in fitting for at, row in enumerate(group) if sources[at] != at]
        log_chance = float(np.nansum(chances_B[copies]))
        if len(fitting) >= SHARE * len(mixed) and log_chance < math.log(CHANCE):
            return finding(
                f"{name} in {len(fitting)} of {len(mixed)} groups: {len(copies)} of {sum(map(len, mixed))} completions "
                "are copies, as if drawn with the same random numbers",
                Fact("log10 of the chance of this under sampling", log_chance / math.log(10), math.log10(CHANCE)),
                Fact("first copy", f"row {copies[0]}", step=batch.step, row=copies[0]),
                confidence=certainty(batch),
            )
    repeats = _rare_repeats([row for group in mixed for row in group], rows, chances_B)
    fact = Fact("improbable completions that come again", len(repeats), FEWEST_REPEATS, batch.step)
    if len(repeats) < FEWEST_REPEATS:
        return healthy("no completion comes twice, except probable ones", fact)
    row, first = repeats[0]
    return finding(
        f"{len(repeats)} of {len(rows)} completions repeat another row although their probability is below "
        f"{RARE_CHANCE:g}: for instance row {row} is row {first}",
        fact,
        Fact(
            "log10 of the probability of that row",
            float(chances_B[row]) / math.log(10),
            math.log10(RARE_CHANCE),
            row=row,
        ),
        confidence=Confidence.POSSIBLE if certainty(batch) is Confidence.POSSIBLE else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    drawn = {id(trained.draw): trained.draw for trained in trained_draws(program)}
    if any(call.name.endswith("fork_rng") for call in program.of("call", "method")):
        return  # the random numbers of the draw are put back
    for draw in drawn.values():
        if is_greedy(draw):
            continue
        found = [verdict for verdict in (_engine_seed(program, draw), _generator(draw)) if verdict is not None]
        found += [
            _seed_finding(seed, draw) for seed in program.of("manual_seed") if _is_before_each(program, seed, draw)
        ]
        yield from found
        if not found:
            yield healthy("no seed is set before each draw", places=(draw.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    sampled = [call for call in run.generations if call.config.get("do_sample")]
    draws_made: list[Sampling | GenerateCall] = [*run.samplings, *sampled]
    is_blind = not any(update.sampled_at for update in run.updates)  # which draws were trained on is not known
    first: dict[tuple[object, ...], Value] = {}
    repeated: list[tuple[Place, Place]] = []
    for draw in sorted(draws_made, key=lambda draw: draw.value.order):
        if draw.state is None or not (is_blind or is_trained_on(run, draw.value)):
            continue
        known = first.setdefault((draw.state, *spot_of(draw.value)), draw.value)
        if known is not draw.value:
            repeated.append((draw.value.place, known.place))
    if not repeated or (is_blind and len(repeated) < len(first)):
        if first and not is_blind:
            yield healthy(f"{len(first)} draws began with different random numbers each")
        return
    again = [place for place in run.seeds if run.seeds.count(place) > 1]
    place = repeated[0][0]
    yield finding(
        f"{len(repeated)} of {len(repeated) + len(first)} draws began with the same state of the random numbers as an "
        "earlier one: the same random numbers are used again",
        places=(again[0] if again else place, place),
    )


def _patterns(size: int) -> list[tuple[str, list[int]]]:
    """Name of a way to copy inside a group, and the place that the completion at each place then comes from."""
    divisors = [number for number in range(2, size) if size % number == 0]
    periods = [(f"the group repeats after {number} rows", [at % number for at in range(size)]) for number in divisors]
    runs = [
        (f"each completion comes {times} times in a row", [at - at % times for at in range(size)]) for times in divisors
    ]
    return [*periods, *runs]


def _rare_repeats(places: Sequence[int], rows: Sequence[Completion], chances_B: Array) -> list[tuple[int, int]]:
    """(row, the earlier row that it equals) of completions too improbable to come twice."""
    seen: dict[Completion, int] = {}
    repeats = []
    for row in places:
        first = seen.setdefault(rows[row], row)
        if first != row and chances_B[row] < math.log(RARE_CHANCE):
            repeats.append((row, first))
    return repeats


def _seed_finding(seed: Value, draw: Value) -> Verdict:
    return finding(
        f"{seed.place.text} sets the same seed before each rollout: every step draws with the same random numbers",
        places=(seed.place, draw.place),
        fix="Set the seed once, before the loop, or add the number of the step to it.",
    )


def _is_before_each(program: Program, seed: Value, draw: Value) -> bool:
    """Whether a seed is set again and again by the loop that draws, and does not change with it."""
    if not seed.name.startswith(OF_TORCH) and seed.name not in ("set_seed", "seed_everything"):
        return False  # Python's and numpy's do not draw tokens; a method is that of a generator
    loops = [loop for loop in seed.context.loops if loop in draw.context.loops]
    if not loops or seed.context.loops[-1] not in draw.context.loops or seed.order > draw.order:
        return False
    around = seed.context.calls[: len(draw.context.calls)]
    if seed.context.calls != draw.context.calls[: len(seed.context.calls)]:
        others = [
            other for other in draws(program) if other is not draw and other.context.calls[: len(around)] == around
        ]
        if seed.context.calls[:-1] != draw.context.calls[: len(seed.context.calls) - 1] or others:
            return False  # the seed of a test, not of the rollout
    return _is_constant(seed.argument("seed"))


def _is_constant(value: Value | None) -> bool:
    """Whether a value is the same in every turn of a loop."""
    changing = ("element", "phi", "call", "method", "unknown", "index")
    return value is not None and not any(
        part.op in changing or (part.op == "parameter" and "default" not in part.arguments) for part in ancestors(value)
    )


def _generator(draw: Value) -> Verdict | None:
    """A generator that is made and seeded again for each rollout."""
    generator = draw.argument("generator")
    if generator is None:
        return None
    for seed in (generator,) if generator.op == "manual_seed" else generator.users:
        is_again = bool(seed.context.loops) and seed.context.loops[-1] in draw.context.loops
        if seed.op == "manual_seed" and is_again and _is_constant(seed.argument("1") or seed.argument("seed")):
            return _seed_finding(seed, draw)
    return None


def _engine_seed(program: Program, draw: Value) -> Verdict | None:
    if draw.op != "generate":
        return None
    settings = settings_of(program, draw)
    seed = settings.given.get("seed")
    if settings.engine != "vllm" or seed is None or not isinstance(seed.constant, int) or settings.config is None:
        return None
    return finding(
        f"the sampling parameters hold seed = {seed.constant}: each request draws with the same random numbers",
        places=(settings.config.place, draw.place),
    )


def _sick() -> Batch:
    """The second half of every group is its first half again."""
    return chosen_rows(healthy_batch(), [row - row % SIZE + row % (SIZE // 2) for row in range(B)])


SICK = GENERATE.replace("    model.eval()\n", "    model.eval()\n    torch.manual_seed(0)\n")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The line that sets the seed is taken away."""
    is_line = isinstance(spot.statement.node, ast.Expr) and spot.statement.node.value is spot.node
    yield spot.without_line() if is_line else None


ILLNESS = illness(
    __name__,
    code="SAMP05",
    severity=Severity.HARMFUL,
    summary="rows repeat each other as if drawn with the same random numbers",
    fix="Give every replica, step and request random numbers of its own: no seed in the sampling parameters, seed + "
    "rank in the engine.",
    symptoms=(
        "completions repeat across ranks or steps",
        "same seed on every GPU",
        "same samples every step",
    ),
    sick=lambda: of_batch(_sick()),
    well=lambda: of_batch(surer(_sick(), 1e-2)),  # a policy that knows little except these answers
    scripts=Scripts(SICK, GENERATE),
    explains=frozenset({"ADV09", "MET07"}),
)

"""
## What it checks
The log-probs in the ratio, the KL and the loss must come from logits divided by the temperature of sampling. Where the
model was asked again at that temperature and at 1, the check says which of the two the recorded numbers are. Else it
looks at old - sampler: a forgotten temperature bends it in proportion to the log-prob itself.

## Why it hurts
At temperature 0.7 the sampled distribution is sharper than the one that is trained. Rare tokens weigh too much, likely
ones too little; with a correction by importance weights the bias moves there. Nothing crashes and the reward may rise,
slowly. It is the most frequent bug of public GRPO code.

## How to fix it
Divide the logits before the log-softmax, by the one setting that the sampler also reads, in every pass: old, new,
reference. Ask the engine for the log-probs of the distribution it samples from.

    # before
    logprobs = torch.log_softmax(logits, dim=-1)
    engine = LLM(model)
    # after
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    engine = LLM(model, logprobs_mode="processed_logprobs")

## When it is wrong

If the batch states another temperature than the one sampled at, the statement is the fault. Some trainers train the
distribution of temperature 1 on purpose and correct by importance weights; then old is meant to be untempered. Without
the model asked again, a policy that grew sharper since the sampler got its weights looks similar: that is only
`likely`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import LOOP
from assay.doctor.facts.logprobs import both_finite, gap_between, logprobs_before_update, versions_behind
from assay.programs.edits import Spot, names_in, together
from assay.programs.facts.sampling.draws import Trained, is_greedy, settings_of, trained_draws, weights_of
from assay.programs.facts.sampling.scoring import Scale, scale_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import main_input, walk
from assay.record.batch import Array
from assay.record.metrics import MEAN_LOW_PRECISION
from assay.verdict import Confidence, Edit, Fact, Missing, Place, Severity, Verdict, finding, healthy

SIDES = {"old_logprobs": "the trainer's old", "new_logprobs": "the trainer's new", "sampler_logprobs": "the sampler's"}
MANY_TOKENS = 64  # tokens: a fit of fewer may be chance
FEWEST_TOKENS = 16  # tokens: below this a fit says nothing
NEARER = 1 / 3  # raw must be this much nearer than plain; rounding alone leaves the two distances about equal
AFTERWARDS = 0.05  # the quotient must be this much nearer than plain: it is the same arithmetic except for rounding
APART = 0.01  # |plain - raw| of a token that shows which it is: where the policy is certain both are 0
LEAST_DIFFERENCE = 1e-3  # mean |difference| from plain that is worth a word
# R^2 of old - sampler over the sampler's log-prob: measured 0.4 to 0.8 at 0.6 <= T <= 1.2, with stale weights 0.01
FIT = 0.4
SLOPE = 0.15  # of that fit where no temperature is stated: T = 0.7 gives 0.17 to 0.23
FIX_OF_ENGINE = (
    "Ask the engine for the log-probs of the tempered distribution (vLLM: logprobs_mode = 'processed_logprobs'); the "
    "trainer's numbers are right."
)
CORRELATION = 0.9  # of old and sampler: numbers of other tokens or of noise are correlated less


def check_batch(batch: Batch) -> Verdict:
    temperature = batch.settings.get("temperature")
    asked_again = batch.get("plain_logprobs") is not None and batch.get("plain_raw_logprobs") is not None
    reported = (
        batch.get(logprobs_before_update(batch, of_the_start=True)) is not None
        and batch.get("sampler_logprobs") is not None
    )
    found = batch.numbers.get("new_temperature")
    if found is not None and temperature is not None and _same_weights(batch, "new_logprobs"):
        return finding(
            f"the log-probs in the loss are the model's at temperature {found:.3g}, and sampling was at "
            f"{_in_words(temperature)}",
            Fact("temperature that gives the log-probs in the loss", float(found), temperature, batch.step),
        )
    if asked_again and temperature != 1.0:
        if untempered := _untempered_sides(batch):
            return _finding(untempered, f", but sampling was at {_in_words(temperature)}", FIX_OF_ENGINE)
        if divided := _divided_sides(batch, temperature):
            return _finding(
                divided,
                f" divided by {_in_words(temperature)}: the division came after the log-softmax, so that the "
                "probabilities do not add up to 1",
            )
    if reported:
        return _fit_temperatures(batch, temperature)
    if asked_again and any(batch.get(side) is not None and _same_weights(batch, side) for side in SIDES):
        return healthy(f"the log-probs are those of temperature {_in_words(temperature)}")
    raise Missing("sampler_logprobs and old_logprobs, or plain_logprobs and plain_raw_logprobs")


def check_source(program: Program) -> Iterator[Verdict]:
    seen: set[tuple[Place, Place]] = set()
    for trained in trained_draws(program):
        scoring = trained.scoring
        scored = scale_of(program, scoring.logits)
        drawn = _drawn_at(program, trained)
        if scored is None or drawn is None or (trained.draw.place, scoring.value.place) in seen:
            continue
        seen.add((trained.draw.place, scoring.value.place))
        yield _compare(program, trained, scored, *drawn)


def _sides(batch: Batch) -> Iterator[tuple[str, Array]]:
    """The sides with numbers of the weights that were asked again."""
    for side in SIDES:
        values_BT = batch.get(side)
        if values_BT is not None and np.isfinite(values_BT).any() and _same_weights(batch, side):
            yield side, values_BT


def _same_weights(batch: Batch, side: str) -> bool:
    """The model is asked in the update: in a later one it is no longer the policy that sampled and that gave `old`."""
    return side == "new_logprobs" or batch.numbers.get("update", 0) == 0


def _untempered_sides(batch: Batch) -> dict[str, Fact]:
    """The sides whose numbers are those of temperature 1, each with its mean distance from what they should be."""
    found = {}
    plain_BT, raw_BT = batch.need("plain_logprobs", "plain_raw_logprobs")
    for side, values_BT in _sides(batch):
        wanted = gap_between(batch, side, "plain_logprobs")
        telling_BT = both_finite(batch, side, "plain_logprobs", "plain_raw_logprobs")
        telling_BT = telling_BT & (np.abs(np.where(telling_BT, plain_BT - raw_BT, 0.0)) > APART)
        if telling_BT.sum() < FEWEST_TOKENS:
            continue
        off, raw = (float(np.abs(values_BT - other_BT)[telling_BT].mean()) for other_BT in (plain_BT, raw_BT))
        if wanted.mean > LEAST_DIFFERENCE and raw < min(NEARER * off, MEAN_LOW_PRECISION):
            what = f"mean |{SIDES[side]} log-prob - the model's|, at temperature 1 only {raw:.2g}"
            found[side] = Fact(what, off, LEAST_DIFFERENCE, batch.step, wanted.row, wanted.token)
    return found


def _divided_sides(batch: Batch, temperature: float | None) -> dict[str, Fact]:
    """The sides whose numbers are log-probs of temperature 1, divided by the temperature: not a distribution."""
    found: dict[str, Fact] = {}
    if not temperature or temperature <= 0:
        return found
    (raw_BT,) = batch.need("plain_raw_logprobs")
    for side, values_BT in _sides(batch):
        wanted, inside_BT = gap_between(batch, side, "plain_logprobs"), both_finite(batch, side, "plain_raw_logprobs")
        off = float(np.abs(values_BT - raw_BT / temperature)[inside_BT].mean())
        if wanted.tokens >= FEWEST_TOKENS and wanted.mean > LEAST_DIFFERENCE and off < AFTERWARDS * wanted.mean:
            what = f"mean |{SIDES[side]} log-prob - the model's|, that of 1 divided by {temperature:.3g} only {off:.2g}"
            found[side] = Fact(what, wanted.mean, LEAST_DIFFERENCE, batch.step, wanted.row, wanted.token)
    return found


def _finding(found: dict[str, Fact], what: str, of_engine: str = "") -> Verdict:
    """`of_engine`: the fix where the trainer's numbers are right."""
    who = " and ".join(SIDES[side] for side in found)
    is_engines = set(found) == {"sampler_logprobs"}
    return finding(f"{who} log-probs are those of temperature 1{what}", *found.values(), fix=of_engine * is_engines)


def _fit_temperatures(batch: Batch, temperature: float | None) -> Verdict:
    """old - sampler = (T - 1) * sampler + a term of the context, if the one is untempered and the other not."""
    old = logprobs_before_update(batch, of_the_start=True)
    inside_BT = both_finite(batch, old, "sampler_logprobs")
    old_N, sampler_N = (values_BT[inside_BT] for values_BT in batch.need(old, "sampler_logprobs"))
    difference_N = old_N - sampler_N
    mean = float(np.abs(difference_N).mean())
    at_hand = Fact("mean |old - sampler|", mean, step=batch.step)
    if (
        len(old_N) < FEWEST_TOKENS
        or mean <= LEAST_DIFFERENCE
        or min(np.std(old_N), np.std(sampler_N), np.std(difference_N)) < LEAST_DIFFERENCE
    ):
        return healthy("trainer and sampler give the same log-probs, so they share a temperature", at_hand)
    slope, _ = np.polyfit(sampler_N, difference_N, 1)
    fit = float(np.corrcoef(sampler_N, difference_N)[0, 1] ** 2)
    alike = float(np.corrcoef(sampler_N, old_N)[0, 1])
    facts = (
        Fact("slope of old - sampler over the sampler's log-prob", float(slope), step=batch.step),
        Fact("share of its variance that the slope explains", fit, FIT),
        at_hand,
    )
    bent = fit > FIT and alike > CORRELATION and _both_signs(difference_N)
    if bent and _plausible(float(slope), temperature):
        return finding(
            f"trainer and sampler use different temperatures (sampling is stated at {_in_words(temperature)}): old - "
            f"sampler is {slope:+.2f} times the log-prob itself, a ratio of temperatures of {1 + slope:.2g} or further "
            "from 1",
            *facts,
            confidence=Confidence.POSSIBLE if len(old_N) < MANY_TOKENS or _is_older(batch) else Confidence.LIKELY,
        )
    return healthy("trainer and sampler do not differ as two temperatures would", *facts)


def _is_older(batch: Batch) -> bool:
    """Whether older weights sampled, which may have been less sharp."""
    behind = versions_behind(batch)
    return bool(batch.settings.get("correction", "off") != "off") if behind is None else behind > 0


def _both_signs(difference_N: Array) -> bool:
    """Two temperatures cross: likely tokens move one way, rare ones the other."""
    return bool(0.02 < (difference_N > 0).mean() < 0.98)


def _plausible(slope: float, temperature: float | None) -> bool:
    """A stated temperature bounds the slope; beside one of 1 the engine may have a default of its own."""
    if temperature is None or temperature == 1.0:
        return abs(slope) > SLOPE
    largest = max(abs(temperature - 1.0), abs(1.0 / temperature - 1.0)) if temperature > 0 else 0.0
    return 0.2 * largest < abs(slope) < 1.2 * largest


def _in_words(temperature: float | None) -> str:
    return "an unstated temperature" if temperature is None else f"{temperature:.3g}"


def _drawn_at(program: Program, trained: Trained) -> tuple[float | None, tuple[Value, ...], Place] | None:
    """(temperature, what sets it, where) of a draw; None where it is not known or does not draw at all."""
    draw = trained.draw
    if is_greedy(draw):
        return None
    if draw.op != "generate":
        scale = scale_of(program, weights_of(draw))
        if scale is None or scale.late:
            return None
        return scale.temperature, tuple(factor for _, factor in scale.factors), draw.place
    settings = settings_of(program, draw)
    given = settings.given.get("temperature")
    greedy = settings.engine != "vllm" and settings.given.get("do_sample") is not None
    if greedy and settings.given["do_sample"].constant is False:
        return None
    if given is None:
        return None if settings.is_open or not settings.engine else (1.0, (), draw.place)
    number = settings.number("temperature")
    return None if number == 0 else (number, (given,), given.place if given.op == "constant" else draw.place)


def _compare(
    program: Program, trained: Trained, scored: Scale, drawn: float | None, set_by: tuple[Value, ...], where: Place
) -> Verdict:
    scoring = trained.scoring
    name, places = scoring.value.shown, (scoring.normaliser.place, where)
    why = program.kinds.why(scoring.value)
    late = _late_factor(trained)
    if late is not None and not scored.factors:
        return finding(
            f"{late.shown} divides log-probs after the log-softmax: they are not log-probs of any temperature",
            places=(late.place, where),
            why=why,
        )
    trained_at = scored.temperature
    if drawn is not None and trained_at is not None:
        if abs(drawn - trained_at) <= 1e-6 * max(drawn, trained_at):
            return healthy(f"tokens are drawn and scored at temperature {drawn:g}", places=places)
        how = "without dividing the logits" if not scored.factors else f"at temperature {trained_at:g}"
        return finding(
            f"tokens are drawn at temperature {drawn:g}, and the log-probs in the loss ({name}) are computed {how}",
            places=places,
            why=why,
        )
    set_by_ids = {id(value) for value in set_by}
    if any(op == "mul" for op, factor in scored.factors if id(factor) in set_by_ids):
        return finding(
            f"the logits of {name} are multiplied by the temperature, and tokens are drawn from logits divided by it",
            places=places,
            why=why,
        )
    return healthy("the temperatures of drawing and scoring are not numbers in the text", places=places)


def _late_factor(trained: Trained) -> Value | None:
    """A setting that divides what a log-softmax gave, before tokens are picked."""
    scoring = trained.scoring
    for value in walk(main_input(scoring.value), main_input, until=lambda value: value is scoring.normaliser):
        other = value.argument("other") if value is not scoring.normaliser else None
        if value.op in ("div", "mul") and other is not None and other.constant is not None and _is_setting(other):
            return value
    return None


def _is_setting(value: Value) -> bool:
    return isinstance(value.constant, float) or value.op in ("config", "parameter")


def _sharper(logprobs_BT: Array, temperature: float) -> Array:
    """log-probs at a lower temperature, of a token against one other: z / T against the other's z / T."""
    others_BT = np.log(-np.expm1(np.minimum(logprobs_BT, -1e-9)))
    return logprobs_BT / temperature - np.logaddexp(logprobs_BT / temperature, others_BT / temperature)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The logits of the scoring divided by what the sampler divides by."""
    logits = spot.argument("logits") or spot.argument("input") or spot.receiver
    if isinstance(spot.node, ast.BinOp) and isinstance(spot.node.op, ast.Div):  # divided behind the softmax
        inner = spot.child(spot.node.left)
        about = inner.receiver
        if about is not None:
            below = spot.child(spot.node.right)
            behind = spot.text.edit((*inner.span[2:], *spot.span[2:]), "")
            yield together([about.becomes(f"{about.within(2)} / {below.within(3)}"), behind], spot.text)
        return
    if logits is None:
        return
    texts = _divisors(verdict, spot, others)
    for part in logits.parts(1):
        for product in part.all(ast.BinOp):
            yield product.with_operator("/") if isinstance(product.node.op, ast.Mult) else None
    made = logits.definition
    for text in dict.fromkeys(texts):
        if not spot.knows(names_in(ast.parse(text))):
            continue
        yield made.becomes(f"{made.within(2)} / {text}") if made is not None else None
        yield logits.becomes(
            f"{logits.within(2)} / {text}"
            if logits.parent.node is spot.node and not spot.is_method
            else f"({logits.within(2)} / {text})"
        )


def sick() -> Evidence:
    """The engine sampled at 0.7; old and new are those of temperature 1."""
    batch = healthy_batch(temperature=0.7)
    tempered_BT = np.where(batch.arrays["mask"], _sharper(batch.arrays["plain_logprobs"], 0.7), 0.0)
    return of_batch(edit_batch(batch, plain_logprobs=tempered_BT, sampler_logprobs=tempered_BT))


def well() -> Evidence:
    """The same temperature, and every log-prob is that of 0.7."""
    batch = healthy_batch(temperature=0.7)
    raw_BT = np.where(batch.arrays["mask"], _sharper(batch.arrays["plain_logprobs"], 1 / 0.7), 0.0)
    return of_batch(edit_batch(batch, plain_raw_logprobs=raw_BT))


SICK = LOOP.replace(
    "logits = model(ids)[:, prompts.shape[1] - 1:-1] / TEMPERATURE", "logits = model(ids)[:, prompts.shape[1] - 1:-1]"
)


def _divisors(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> list[str]:
    """What the sampler divides by as the scoring may write it: its own name, a parameter, the number."""
    found: list[Spot] = []
    for draw in others[:1]:
        given = draw.argument("temperature")
        products = [] if given is not None else Spot(draw.text, draw.function).all(ast.BinOp)
        found += [given] if given is not None else []
        found += [part.child(part.node.right) for part in products if isinstance(part.node.op, ast.Div)]
    own = spot.function.args.args if isinstance(spot.function, ast.FunctionDef) else []
    texts = [argument.arg for argument in own if argument.arg.startswith("temp")]
    texts += [
        divisor.source for divisor in found if re.fullmatch(r"[\w.]*(temp|tau)\w*", divisor.source, re.IGNORECASE)
    ]
    number = re.search(r"drawn at temperature ([\d.]+)", verdict.message)
    return texts or ([number[1]] if number else [])


ILLNESS = illness(
    __name__,
    code="SAMP01",
    severity=Severity.HARMFUL,
    summary="log-probs are not computed at the sampling temperature",
    fix="Divide the logits by the sampling temperature before the log-softmax, in every pass that makes log-probs.",
    symptoms=(
        "ratio is not 1 with temperature below 1",
        "log-probs do not match at temperature 0.7",
        "wrong temperature in the log-probs",
    ),
    sick=sick,
    well=well,
    scripts=Scripts(SICK, LOOP),
    explains=frozenset({"SAMP06", "RAT01", "RAT07", "SYNC01", "KL05", "MODE01"}),
)

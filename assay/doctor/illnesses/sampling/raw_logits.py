"""
## What it checks
The weights that a sampler draws tokens from. `torch.multinomial(weights)`, `Categorical(probs=...)`,
`numpy.random.choice(p=...)` and `random.choices(weights=...)` want probabilities; `Categorical(logits=...)` wants
logits or log-probs. The check follows the weights back to the model.

## Why it hurts
Logits as weights are another distribution than the one that is scored: a negative logit stops the script, positive
ones are drawn in proportion to the logit itself, which is nearly uniform. Probabilities as logits are flattened: the
likeliest of two tokens with 0.9 and 0.1 is drawn 69 times in 100, not 90. Either way the log-probs in the loss belong
to a policy that did not sample.

## How to fix it
    # before
    token = torch.multinomial(logits, num_samples=1)
    # after
    token = torch.multinomial(torch.softmax(logits / temperature, dim=-1), num_samples=1)

## When it is wrong
Weights that are not made by a network (counts, rewards, a curriculum) are left alone, and so is a network that ends in
a softmax of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness
from assay.programs.edits import Spot
from assay.programs.facts.kinds import PASSES, SCORES, Kind, Known, is_normalised, last_layer
from assay.programs.facts.origin import network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.draws import draw_weights, refused_weights
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import main_input, peel, walk
from assay.verdict import Edit, Severity, Verdict, finding, healthy

WEIGHTS = (Kind.PROBABILITIES, Kind.TOKEN_PROBABILITIES)
BENT = {"relu": "relu", "abs": "the absolute value", "square": "the square", "sigmoid": "a sigmoid"}
DEEPEST = 40  # operations between a network and the weights


def check_source(program: Program) -> Iterator[Verdict]:
    for value in program.of("multinomial"):
        yield from _weights(program, value, "input")
    for value in program.of("categorical"):
        yield from _weights(program, value, "probs")
        yield from _logits(program, value)
    for value in program.of("call", "method"):
        name = _of_python(value)
        if name:
            yield from _weights(program, value, name)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for weights in (*draw_weights(run), *refused_weights(run)):
        places = (weights.place, weights.made_at)
        if weights.lowest is not None:
            what = "log-probs" if weights.are_logprobs else "logits"
            yield finding(
                f"the weights of the draw are {what}: the lowest is {weights.lowest:.3g}, and no weight may be below 0",
                places=places,
            )
        elif weights.wrong:
            yield finding(
                f"the token is not drawn from the softmax of the logits: its weights are {weights.wrong}", places=places
            )
        elif weights.is_softmax:
            yield healthy("tokens are drawn from a softmax of the logits")


def _of_python(value: Value) -> str:
    """The argument that holds the weights of numpy.random.choice and random.choices; "": another call."""
    last = value.name.rpartition(".")[2]
    if last == "choice" and (value.op == "method" or value.name.endswith("random.choice")):
        named = "3" if value.op == "call" else "4"
        return "p" if "p" in value.arguments else named if named in value.arguments else ""
    if last == "choices" and (value.op == "method" or value.name.endswith("random.choices")):
        named = "1" if value.op == "call" else "2"
        return "weights" if "weights" in value.arguments else named if named in value.arguments else ""
    return ""


def _weights(program: Program, sampler: Value, name: str) -> Iterator[Verdict]:
    weights = sampler.argument(name)
    if weights is None:
        return
    known = program.kinds.of(weights)
    if known is None:
        yield from _bent_weights(program, sampler, weights)
    elif known.kind is Kind.LOG_SOFTMAX or (known.kind in SCORES and _is_raw(program, known)):
        what = Kind.LOGITS if known.kind is Kind.OUTPUT else known.kind
        yield finding(
            f"{weights.shown} are the weights of a sampler, but they are {what}: it draws in proportion to them",
            places=(sampler.place,),
            why=program.kinds.why(weights),
        )
    elif known.kind in WEIGHTS and (twice := _twice(program, weights)) is not None:
        yield _second_softmax(program, twice)
    elif known.kind in WEIGHTS and (across := _across_rows(weights)) is not None:
        yield finding(
            f"the weights of a sampler are a softmax over dimension 0 of {across.shown}, which is the batch: those of "
            "one row do not sum to 1",
            places=(across.place,),
            why=program.kinds.why(weights),
            fix="Take the softmax over the last dimension, the vocabulary: dim=-1.",
        )
    elif known.kind in WEIGHTS:
        yield healthy("the weights of the sampler are probabilities", places=(sampler.place,))


def _logits(program: Program, sampler: Value) -> Iterator[Verdict]:
    logits = sampler.argument("logits")
    known = program.kinds.of(logits)
    if logits is None or known is None:
        return
    if known.kind in WEIGHTS:
        yield finding(
            f"{logits.shown} goes in as logits, but it is {known.kind}: a second softmax flattens it",
            places=(sampler.place,),
            why=program.kinds.why(logits),
            fix="Pass them as Categorical(probs=...), or pass the logits themselves.",
        )
    elif known.kind is Kind.LOG_SOFTMAX and (twice := _twice(program, logits)) is not None:
        yield _second_softmax(program, twice)
    else:
        yield healthy(f"the logits of the distribution are {known.kind}", places=(sampler.place,))


def _twice(program: Program, value: Value) -> Value | None:
    """A softmax of probabilities on the way to the sampler."""

    def is_second(value: Value) -> bool:
        return value.op in ("softmax", "log_softmax") and program.kinds.is_a(value.input, *WEIGHTS)

    through = {*PASSES, "index", "div", "exp", "softmax", "log_softmax"} - {"phi"}
    way = walk(value, main_input, until=lambda value: value.op not in through or is_second(value))
    return next(filter(is_second, way), None)


def _across_rows(weights: Value) -> Value | None:
    """A softmax over dimension 0 of logits that were cut as [:, -1]: rows of a batch."""
    softmax = peel(weights, ("index", "div", "cast", "detach"))
    cut = peel(softmax.input, ("div", "cast", "detach"))
    if softmax.op != "softmax" or softmax.setting("dim") != 0 or cut is None or cut.op != "index":
        return None
    keys = cut.keys
    return softmax if len(keys) > 1 and keys[0].op == "slice" and not keys[0].arguments else None


def _second_softmax(program: Program, softmax: Value) -> Verdict:
    assert softmax.input is not None
    return finding(
        f"a softmax is taken of {softmax.input.shown}, which is probabilities already: the second one flattens it",
        places=(softmax.place,),
        why=program.kinds.why(softmax.input),
        fix="Take one softmax, of the logits.",
    )


def _bent_weights(program: Program, sampler: Value, weights: Value) -> Iterator[Verdict]:
    """Logits that were only made positive."""
    through = {*PASSES, *BENT, "index", "add", "div", "clamp"} - {"phi"}
    *way, source = walk(
        weights, main_input, until=lambda value: bool(program.kinds.of(value)) or value.op not in through
    )
    known, bends = program.kinds.of(source), [BENT[value.op] for value in way if value.op in BENT]
    if not bends or known is None or known.kind not in SCORES:
        return
    if known.kind is Kind.LOGITS or _has_softmax_elsewhere(program, known):
        yield finding(
            f"{weights.shown} are the weights of a sampler, but they are {bends[-1]} of logits and no softmax",
            places=(sampler.place,),
            why=program.kinds.why(source),
        )


def _is_raw(program: Program, known: Known) -> bool:
    """Whether an output of a network is known to be no distribution: it ends in a linear layer, or logits elsewhere."""
    is_known = known.kind is Kind.LOGITS or _ends_linear(_source(known))
    return is_known or _has_softmax_elsewhere(program, known)


def _source(known: Known) -> Value:
    while known.of is not None:
        known = known.of
    return known.value


def _ends_linear(value: Value | None, depth: int = DEEPEST) -> bool:
    if value is None or depth == 0:
        return False
    if value.op == "forward":
        if "output" in value.arguments:
            return _ends_linear(value.arguments["output"], depth - 1)
        model = value.arguments.get("model")
        is_language_model = model is not None and network(model).op == "pretrained"
        return is_language_model or last_layer(value) in ("Linear", "LazyLinear", "Bilinear")
    if value.op == "matmul":
        return True
    if value.op == "phi":
        return bool(value.arguments) and all(
            _ends_linear(part, depth - 1) for part in value.inputs if part is not value
        )
    if value.op in (*PASSES, "index", "div", "mul", "add", "sub"):
        return _ends_linear(value.input, depth - 1)
    return False


def _has_softmax_elsewhere(program: Program, known: Known) -> bool:
    """Whether a softmax is taken of another output of the same network."""

    def model_of(call: Value) -> Value | None:
        return call.argument("model") or call.argument("callee")

    model = model_of(_source(known))
    others = [(call, other) for call in program.of("forward", "call") if (other := model_of(call)) is not None]
    return model is not None and any(is_normalised(call) and same_network(other, model) for call, other in others)


SICK = """
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("tiny")

def sample(ids, steps):
    for _ in range(steps):
        scores = model(ids).logits[:, -1, :] / 0.8
        ids = torch.cat([ids, torch.multinomial(scores, 1)], dim=1)
    return ids
"""


WELL = SICK.replace("multinomial(scores, 1)", "multinomial(scores.softmax(-1), 1)")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """One softmax over the vocabulary: added, taken away, or turned to the right axis."""
    torch = spot.text.torch
    for keyword in spot.node.keywords if spot.name == "Categorical" else ():
        if keyword.arg in ("logits", "probs") and "already" not in verdict.message:
            line, column = spot.child(keyword).span[:2]
            other = "probs" if keyword.arg == "logits" else "logits"
            yield spot.text.edit((line, column, line, column + len(keyword.arg)), other)
    weights = spot.argument("input") or spot.receiver
    if weights is None:
        return
    if spot.name == "softmax":
        given = spot.argument("dim", 0)
        is_batch = "which is the batch" in verdict.message
        yield given.becomes("-1") if given is not None and is_batch else None
        yield spot.becomes(weights.source) if "already" in verdict.message else None
    for part in weights.parts(1):
        for call in part.all(ast.Call):
            about = call.receiver
            if call.name in ("sigmoid", "relu", "abs") and about is not None and torch:
                holder = (
                    call.parent if isinstance(call.parent.node, ast.BinOp) and call.node is not weights.node else call
                )
                yield holder.becomes(f"{torch}.softmax({about.source}, dim=-1)")
                return
    yield (
        weights.becomes(f"{torch}.softmax({weights.source}, dim=-1)") if torch else weights.followed_by(".softmax(-1)")
    )


ILLNESS = illness(
    __name__,
    code="SAMP07",
    severity=Severity.FATAL,
    summary="the sampler draws from logits as if they were probabilities, or the other way round",
    fix="Take the softmax of the logits, divided by the temperature, and draw from that.",
    symptoms=(
        "samples are random tokens from the start",
        "multinomial on logits",
        "probabilities are negative error in multinomial",
    ),
    scripts=Scripts(SICK, WELL),
    explains=frozenset({"SAMP06", "SAMP01", "RAT01"}),
)

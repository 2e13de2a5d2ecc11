"""
## What it checks
The weights that a sampler draws tokens from. `torch.multinomial(weights)` and `Categorical(probs=...)` want
probabilities; `Categorical(logits=...)` wants logits or log-probs. The check follows the weights back to the model.

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

from collections.abc import Iterator

from assay.dataflow.kinds import SCORES, Kind
from assay.dataflow.value import Value
from assay.doctor.catalogue import Illness, Scripts
from assay.source.program import Program
from assay.verdict import Confidence, Edit, Severity, Verdict, finding, healthy

WEIGHTS = (Kind.PROBABILITIES, Kind.TOKEN_PROBABILITIES)


def check_source(program: Program) -> Iterator[Verdict]:
    for value in program.of("multinomial"):
        yield from _weights(program, value, "input")
    for value in program.of("categorical"):
        yield from _weights(program, value, "probs")
        logits = value.argument("logits")
        known = program.kinds.of(logits)
        if logits is None or known is None:
            continue
        if known.kind in WEIGHTS:
            yield finding(
                f"{logits.shown} goes in as logits, but it is {known.kind}: a second softmax flattens it",
                confidence=Confidence.LIKELY,
                places=(value.place,),
                why=program.kinds.why(logits),
                fix="Pass them as Categorical(probs=...), or pass the logits themselves.",
            )
        else:
            yield healthy(f"the logits of the distribution are {known.kind}", places=(value.place,))


def _weights(program: Program, sampler: Value, name: str) -> Iterator[Verdict]:
    weights = sampler.argument(name)
    known = program.kinds.of(weights)
    if weights is None or known is None:
        return
    if known.kind in (*SCORES, Kind.LOG_SOFTMAX):
        inside = sampler.place_of(name)
        normalised = "exp({})" if known.kind is Kind.LOG_SOFTMAX else "softmax({}, dim=-1)"
        yield finding(
            f"{weights.shown} are the weights of a sampler, but they are {known.kind}: it draws in proportion to them",
            confidence=Confidence.LIKELY,
            places=(sampler.place,),
            why=program.kinds.why(weights),
            edit=Edit(inside, "torch." + normalised.format(inside.text)) if inside is not sampler.place else None,
        )
    elif known.kind in WEIGHTS:
        yield healthy("the weights of the sampler are probabilities", places=(sampler.place,))


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

ILLNESS = Illness(
    code="SAMP07",
    name="raw_logits",
    severity=Severity.FATAL,
    summary="The sampler draws from logits as if they were probabilities, or the other way round.",
    fix="Take the softmax of the logits, divided by the temperature, and draw from that.",
    explanation=__doc__,
    source=check_source,
    scripts=Scripts(SICK, WELL),
    explains=frozenset({"SAMP06", "RAT01"}),
)

"""
## What it checks
The network that draws the tokens is the one that is trained, or a copy into which its weights are loaded. The check
follows the tokens that the loss is computed on back to the call that drew them.

## Why it hurts
The ratio new / old says how far the policy has moved from the one that sampled. If a frozen reference sampled, rewards
and advantages belong to the reference's answers: the policy is judged by what it did not do, never explores, and the
ratio shows 1 all the same.

## How to fix it
    # before
    ids = reference.generate(prompts)
    # after
    ids = policy.generate(prompts)

## When it is wrong
Learning from another network's samples is right where its own log-probs are the denominator of the ratio, and in
distillation; both are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot, by_the_policy
from assay.programs.facts.kinds import Kind
from assay.programs.facts.loss.signs import is_centred_factor
from assay.programs.facts.loss.terms import Term, TermKind
from assay.programs.facts.origin import same_network
from assay.programs.facts.ratio import differences, uses
from assay.programs.facts.sampling.samplers import draws_behind, is_touched, is_trained, loads_into, source_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.draws import behaviour
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import ancestors
from assay.verdict import Edit, Severity, Verdict, finding, healthy


def check_source(program: Program) -> Iterator[Verdict]:
    seen = set()
    for loss, terms in program.losses:
        if not program.origins.trained() or not any(_is_policy(program, term) for term in terms):
            continue
        drawings = draws_behind(program, loss)
        ours = any(is_trained(program, model) for _, model in drawings)
        for drawing, model in drawings:
            if drawing.place in seen:
                continue
            seen.add(drawing.place)
            if is_trained(program, model):
                yield healthy("the trained network draws the tokens", places=(drawing.place,))
            elif not ours and (what := _stays_another(program, loss, drawing, model)):
                yield finding(
                    f"the tokens of the loss are drawn by `{drawing.place.text}`: {what}, not by the one "
                    "that is trained",
                    places=(drawing.place, model.place),
                )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    seen = behaviour(run)
    if seen.agrees:
        yield healthy("old log-probs are those of the weights that sampled")
    other = seen.other
    if other is not None:
        whose = "other weights" if other.lag is None else f"weights {other.lag} updates older"
        product = other.piece.product
        yield finding(
            f"old log-probs are computed by the policy, but {whose} sampled the tokens, and no importance weight "
            "corrects for it",
            places=(other.old.value.place, other.update.place if product is None else product.place),
        )


def _is_policy(program: Program, term: Term) -> bool:
    if term.kind is TermKind.SURROGATE:
        return True
    return term.kind is TermKind.POLICY and any(is_centred_factor(program, factor) for factor in term.factors)


def _stays_another(program: Program, loss: Value, drawing: Value, model: Value) -> str:
    """What the sampling network is, if it never gets the trained weights and the ratio does not correct for that."""
    for use in uses(program):
        for difference in differences(program, use.ratio):
            if any(same_network(model, other) for other in program.origins.networks(difference.right)):
                return ""
        if any(_is_weight(program, factor, model) for factor in use.factors):
            return ""
    if is_touched(program, model):
        return ""
    sources = [source_of(load) for load in loads_into(program, model) if _is_in_a_loop_of(load, drawing)]
    if sources:
        if any(source is None or is_trained(program, source) for source in sources):
            return ""
        return "a network into which the weights of another one are loaded"
    before = {id(value) for value in ancestors(drawing)}
    for call in program.origins.forwards(loss):
        if call.op == "forward" and same_network(call.arguments["model"], model) and id(call) not in before:
            return "a network that is never trained and scores them as the reference"
    return ""


def _is_in_a_loop_of(load: Value, drawing: Value) -> bool:
    """A load before all rollouts makes a copy; only one between them keeps it current."""
    return not drawing.context.loops or any(loop in drawing.context.loops for loop in load.context.loops)


def _is_weight(program: Program, factor: Value, model: Value) -> bool:
    """Whether a factor is an importance weight against the sampling network."""
    is_ratio = any(program.kinds.is_a(value, Kind.RATIO) for value in (factor, factor.input))
    return is_ratio and any(same_network(model, other) for other in program.origins.networks(factor))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    yield from by_the_policy(spot, others[0]) if others else ()


ILLNESS = illness(
    __name__,
    code="RAT05",
    severity=Severity.FATAL,
    summary="another network than the trained one samples the tokens",
    fix="Sample from the policy that is trained, or load its weights into the sampling copy before each rollout.",
    symptoms=(
        "samples come from the reference model",
        "wrong model generates",
        "generating with another model than the one that is trained",
    ),
    scripts=Scripts(sick=with_change("ids = policy.generate(", "ids = reference.generate("), well=GRPO),
    explains=frozenset({"RAT01", "SAMP06", "SYNC01", "RAT02"}),
)

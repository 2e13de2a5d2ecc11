"""
## What it checks
The precision in which log-probs are computed: the input of a log-softmax, a logsumexp, a cross-entropy or a categorical
distribution that ends up in the loss. Logits of a model that was loaded in bfloat16 are bfloat16 until they are cast.

## Why it hurts
A bfloat16 has 8 significant bits: between 8 and 16 neighbours are 0.06 apart. The sum over a vocabulary of 100,000 adds
numbers that vanish beside the ones that are there. Ratio and KL are differences of such log-probs, and mostly rounding.

## How to fix it
    # before
    logprobs = torch.log_softmax(model(ids).logits, dim=-1)
    # after
    logprobs = torch.log_softmax(model(ids).logits.float(), dim=-1)

## When it is wrong
Under autocast torch computes these functions in float32 by itself, and the check is silent. Some models of older
versions of transformers return float32 logits whatever their weights are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot
from assay.programs.facts.kinds import last_layer
from assay.programs.facts.optimizer.precision import dtype_of, is_mixed, is_upcast, precision_of_weights, rounding_cast
from assay.programs.facts.origin import network
from assay.programs.facts.ratio import is_differentiated
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.roles import backwards_since_sampling
from assay.programs.run.sight import Sight, sight
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import walk
from assay.verdict import Edit, Severity, Verdict, finding, healthy

NORMALISERS = ("log_softmax", "logsumexp", "cross_entropy", "categorical")
BACKWARDS = 8  # of a run that are looked at: later ones come from the same lines
NORMALISED = frozenset("log_softmax cross_entropy logsumexp softmax nll_loss".split())  # in a run


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    mixed = is_mixed(program, of_weights=False)
    cast = {value.place for value in program.of(*NORMALISERS) if value.context.autocast}  # in one of its calls
    for value in program.of(*NORMALISERS):
        scores = value.input or value.argument("logits") or value.argument("probs")
        if scores is None or not _is_in_loss(program, value) or _asks_for_dtype(value):
            continue
        if value.op == "log_softmax" and dtype_of(value.argument("dtype")) == "float32":
            continue
        low = rounding_cast(program, scores)
        verdict = None
        if low is not None:
            verdict = finding(
                f"`{value.place.text}` is computed in 16 bits: `{low.place.text}` rounds the logits before it",
                places=(low.place, value.place),
                why=program.kinds.why(scores),
            )
        elif not mixed and value.place not in cast and not is_upcast(program, scores):
            verdict = _of_weights(program, value, scores)
        yield verdict or healthy("log-probs are computed in float32", places=(value.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """The softmax behind log-probs in the loss, computed in 16 bits."""
    for piece in (piece for backward in backwards_since_sampling(run)[:BACKWARDS] for piece in backward.pieces):
        for logprobs in (piece.new, piece.old, piece.ref):
            for value in walk(logprobs, _numbers) if logprobs is not None else ():
                seen = _softmax(value)
                if seen is not None and seen.is_half:
                    yield finding(
                        f"the softmax behind the log-probs in the loss is computed in {seen.dtype}: it keeps 2 to 3 "
                        "digits",
                        places=(value.place,),
                    )
                elif seen is not None:
                    yield healthy(f"the softmax behind the log-probs in the loss is computed in {seen.dtype}")


def _of_weights(program: Program, value: Value, scores: Value) -> Verdict | None:
    calls = program.origins.forwards(scores)
    if not calls or any(call.op != "forward" for call in calls):
        return None
    if all(call.context.autocast and _ends_in_product(call) for call in calls):
        return finding(
            f"`{value.place.text}` is computed outside of autocast on what `{calls[0].place.text}` made within it: in "
            "16 bits",
            places=(value.place, calls[0].place),
            why=program.kinds.why(scores),
        )
    if any(call.context.autocast for call in calls):
        return None
    for call in calls:
        kept = precision_of_weights(program, call.arguments["model"])
        if kept is None or kept[0] not in ("bfloat16", "float16"):
            return None
        return finding(
            f"`{value.place.text}` is computed in {kept[0]}: `{kept[1].place.text}` keeps the weights, and so the "
            "logits, in 16 bits",
            places=(value.place, kept[1].place),
            why=program.kinds.why(scores),
        )
    return None


def _ends_in_product(call: Value) -> bool:
    """Whether the last layer of a network is a matrix product, which autocast computes in 16 bits."""
    model = network(call.arguments["model"])
    output = call.argument("output")
    last = output if output is not None else call
    return model.op == "pretrained" or (last.op == "forward" and last_layer(last) in ("Linear", "LazyLinear"))


def _is_in_loss(program: Program, value: Value) -> bool:
    """Whether a gradient flows through it into a loss: what only draws tokens may be computed in any precision."""
    cuts = ("detach", "leave", "multinomial", "sample", "append")
    return not value.context.no_grad and is_differentiated(program, value, cuts)


def _asks_for_dtype(value: Value) -> bool:
    """Whether an `if` around it has looked at the precision: it does what suits it."""
    return any("dtype" in branch.condition.place.text for branch in value.context.branches)


def _numbers(value: Value) -> Iterator[Value]:
    """What the numbers are made of in a run; not how the tokens were chosen."""
    names = ("input", "other") if value.op == "sub" else ("input", "tensors")
    for part in (value.arguments.get(name) for name in names if value.op not in ("forward", "log_prob")):
        if part is not None:
            yield from part.inputs[:1] if part.op == "listing" else [part]


def _softmax(value: Value) -> Sight | None:
    """The softmax that was computed here; of a distribution, what it was given."""
    if value.op == "log_prob":
        distribution = value.arguments["input"]
        return sight(distribution.arguments.get("logits") or distribution.arguments.get("probs") or distribution)
    return sight(value) if value.op in NORMALISED else None


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The cast before the softmax to float32."""
    yield spot.cast_to_float()
    for call in (spot, *others):
        about = call.receiver
        if call.name in ("log_softmax", "softmax", "logsumexp", "cross_entropy") and about is not None:
            yield about.followed_by(".float()")
    yield spot.followed_by(".float()")


ILLNESS = illness(
    __name__,
    code="NUM01",
    severity=Severity.HARMFUL,
    summary="log-probs of the loss are computed in 16 bits",
    fix="Cast the logits to float32 before the log-softmax.",
    symptoms=(
        "log-probs in bf16 are inaccurate",
        "noisy ratio in half precision",
        "log_softmax in bfloat16",
    ),
    scripts=Scripts(sick=with_change("-1].float()", "-1].bfloat16()"), well=GRPO),
    explains=frozenset({"NUM02", "RAT01", "SAMP06", "KL05"}),
)

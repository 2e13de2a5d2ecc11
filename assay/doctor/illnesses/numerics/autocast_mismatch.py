"""
## What it checks
Old, new, reference and sampler log-probs must be computed and kept in the same precision. A log-prob that went through
bfloat16 or float16 has only 8 or 11 significant bits; a float32 one has 24. The check looks at the bits of the loss
tokens' log-probs: where all numbers of one side fit 16 bits and those of the other do not, one of them was rounded. In
a script: log-probs of a pass under autocast subtracted from those of a pass without, or of one side cast to 16 bits.

## Why it hurts
Between 1 and 2 a bfloat16 moves in steps of 0.008, beyond 8 in steps of 0.06. The ratio of a rounded and an unrounded
log-prob is off by half such a step in every token before anything was learned, and most where the policy is unsure,
which is where it learns. Clipping and KL see noise; a sum over a long answer sees a lot of it.

## How to fix it
Leave autocast before the log-softmax, and keep log-probs in float32 in every buffer they pass.

    # before: old is kept as the model computed it, new is not
    old = logprobs(model, batch).to(torch.bfloat16)
    new = logprobs(model, batch).float()
    # after
    old = logprobs(model, batch).float()
    new = logprobs(model, batch).float()

## When it is wrong
A sampling engine may report rounded log-probs; where they are only logged and old ones are computed by the trainer,
that costs a metric and no gradient, and is reported as waste. Numbers that were rounded when the evidence was saved
look the same: save float32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch, of_the_loss
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.optimizer.precision import is_mixed, rounding_cast
from assay.programs.facts.ratio import read_back
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.roles import backwards_since_sampling
from assay.programs.run.sight import sight
from assay.programs.run.watched import Forward, WatchedRun
from assay.record.batch import Array
from assay.verdict import Edit, Fact, Place, Severity, Verdict, finding, healthy, not_enough_data

TOKENS = 20  # this many numbers that all fit 16 bits by chance have a probability below 1e-60
# of a |log-prob|: float32 gives logit - logsumexp in steps of 2^-18 where logits are near 60, so that smaller ones
# have no more bits than the 11 of a float16
SMALLEST = 2.0**-6
ROUNDED = 0.99  # of a side's numbers fit 16 bits: a few may have been replaced or clamped
EXACT = 0.5  # at most this share fits on the other side: float32 numbers do once in thousands
SIDES = ("old_logprobs", "new_logprobs", "ref_logprobs", "sampler_logprobs")
BACKWARDS = 8  # of a run that are looked at: later ones come from the same lines


def check_batch(batch: Batch) -> Verdict:
    (mask_BT,) = batch.need("mask")
    sides = {name: values for name in SIDES if len(values := _numbers(batch.get(name), mask_BT)) >= TOKENS}
    if len(sides) < 2:
        return not_enough_data(f"two of {', '.join(SIDES)} with {TOKENS} loss tokens")
    shares = {name: _share_of_16_bits(values) for name, values in sides.items()}
    facts = [Fact(f"share of {name} that fit {kind}", share, step=batch.step) for name, (kind, share) in shares.items()]
    rounded = [name for name, (_, share) in shares.items() if share >= ROUNDED]
    exact = [name for name, (_, share) in shares.items() if share <= EXACT]
    if not rounded or not exact:
        return healthy("all log-probs have the same precision", *facts)
    name = rounded[0]
    kind = shares[name][0]
    harmless = rounded == ["sampler_logprobs"] and batch.settings.get("correction", "off") == "off"
    return finding(
        f"{' and '.join(rounded)} are rounded to {kind} (all {len(sides[name])} numbers fit its bits), "
        f"{' and '.join(exact)} are not: their differences are off by up to {_step(sides[name], kind):.2g}",
        *facts,
        severity=Severity.WASTEFUL if harmless else None,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """The two sides of each difference of log-probs: passes under autocast on one side only, or rounded on one only."""
    mixed = is_mixed(program)
    seen: set[Place] = set()
    for value in program.of("sub"):
        sides = [value.input, value.argument("other")]
        values = [side for side in sides if side is not None]
        if len(values) < 2 or not program.kinds.is_a(value, Kind.LOG_RATIO):
            continue
        left, right = (program.origins.forwards(side) for side in values)
        if not left or not right or value.place in seen:
            continue
        seen.add(value.place)
        casts = [{_is_under_autocast(program, call) for call in calls} for calls in (left, right)]
        rounded = [cast for side in values if (cast := rounding_cast(program, read_back(side) or side)) is not None]
        if not mixed and casts in ([{True}, {False}], [{False}, {True}]):
            under, plain = (left[0], right[0]) if casts[0] == {True} else (right[0], left[0])
            yield finding(
                f"`{value.place.text}` subtracts log-probs of `{under.place.text}` under autocast from those of "
                f"`{plain.place.text}` without: they differ before anything was learned",
                places=(under.context.calls[-1] if under.context.calls else under.place, value.place),
                why=program.kinds.why(value),
            )
        elif len(rounded) == 1:
            yield finding(
                f"`{value.place.text}` subtracts log-probs of which one side was rounded to 16 bits by "
                f"`{rounded[0].place.text}` and the other was not",
                places=(rounded[0].place, value.place),
                why=program.kinds.why(value),
            )
        else:
            yield healthy("both sides are computed in the same precision", places=(value.place,))


def _is_under_autocast(program: Program, call: Value) -> bool:
    """Whether a pass ran under autocast, or the layers did that a network of the script's own is made of."""
    output = call.argument("output")
    if call.context.autocast or output is None:
        return call.context.autocast
    inner = [part for part in program.origins.forwards(output) if part is not call]
    return bool(inner) and all(part.context.autocast for part in inner)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    samplers = {id(draw.forward) for draw in run.samplings}
    for piece in (piece for backward in backwards_since_sampling(run)[:BACKWARDS] for piece in backward.pieces):
        mine = piece.forward
        for name, logprobs in (("old", piece.old_operand), ("reference", piece.ref)):
            other = run.kinds.pass_of(logprobs)
            if other is None or id(other) in samplers:
                continue
            if mine.value.context.autocast != other.value.context.autocast and _dtype(mine) != _dtype(other):
                inside = "new" if mine.value.context.autocast else name
                yield finding(
                    f"new and {name} log-probs come from passes of different precision: only that of {inside} ran "
                    "under autocast",
                    places=(other.value.place, mine.value.place),
                )
            else:
                yield healthy("the passes whose log-probs are compared ran in the same precision")


def _numbers(values_BT: Array | None, mask_BT: Array) -> Array:
    """Of the loss tokens; 0 fits any precision, and what is near 0 may."""
    if values_BT is None:
        return np.zeros(0)
    values_N: Array = values_BT[mask_BT]
    return np.asarray(values_N[np.isfinite(values_N) & (np.abs(values_N) > SMALLEST)])


def _share_of_16_bits(values_N: Array) -> tuple[str, float]:
    """The 16-bit kind that more of the numbers fit, and how many do."""
    shares = {
        "bfloat16": float(np.mean(_to_bfloat16(values_N) == values_N)),
        "float16": float(np.mean(values_N.clip(-6e4, 6e4).astype(np.float16) == values_N)),
    }
    return max(shares.items(), key=lambda item: item[1])


def _to_bfloat16(values: Array) -> Array:
    """To nearest; ties, which no sum of logits hits, away from zero."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x8000) & 0xFFFF0000).astype(np.uint32)
    return np.asarray(rounded.view(np.float32), dtype=np.float64)


def _step(values_N: Array, kind: str) -> float:
    """Half the distance between neighbours at the largest number."""
    bits = 8 if kind == "bfloat16" else 11
    return float(2.0 ** (np.floor(np.log2(np.abs(values_N).max())) - bits))


def _dtype(forward: Forward) -> str:
    """Of what the pass returned."""
    outputs = [sight(output) for output in [forward.value, *forward.value.users]]
    dtypes = [seen.dtype for seen in outputs if seen is not None and seen.is_floating]
    return dtypes[0] if dtypes else "autocast" * forward.value.context.autocast


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Both passes without autocast; no cast on one side."""
    yield spot.cast_to_float()
    for around in spot.outside:
        for item in around.node.items if isinstance(around.node, ast.With) else ():
            yield around.without_item(item) if around.child(item.context_expr).name == "autocast" else None


def sick() -> Evidence:
    batch = healthy_batch()
    old_BT = _to_bfloat16(batch.arrays["old_logprobs"])
    return of_batch(edit_batch(batch, old_logprobs=old_BT, ratio=None, **of_the_loss(batch)))


ILLNESS = illness(
    __name__,
    code="NUM02",
    severity=Severity.HARMFUL,
    summary="old, new, reference and sampler log-probs are not of the same precision",
    fix="Compute every log-softmax outside of autocast in float32, and keep log-probs in float32 buffers.",
    symptoms=(
        "ratio is noisy with autocast",
        "old and new log-probs in different precision",
        "log-probs differ slightly between passes",
        "mixed precision mismatch",
    ),
    sick=sick,
    well=lambda: of_batch(healthy_batch()),
    scripts=Scripts(
        sick=with_change(
            "    with torch.no_grad():\n        old",
            '    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):\n        old',
        ),
        well=GRPO,
    ),
    explains=frozenset({"KL05", "RAT01", "SAMP06", "RAT04"}),
)

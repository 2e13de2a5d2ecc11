"""
## What it checks
Lines that have no effect: a method of a tensor or a text, or a function of torch, whose result nothing takes
(`ids.masked_fill(mask, 0)` gives a new tensor and leaves `ids` as it is), and methods that are named and not called
(`model.eval`, `optimizer.step`).

## Why it hurts
The line reads as if it masked, clipped or cleared something, and nothing happens: tokens that should be masked are
trained on, dropout stays on, gradients are never used. No error says so.

## How to fix it
Take the result, or use the form that changes its tensor, with an underscore at the end.

    # before
    positions.masked_fill(mask == 0, 1)
    # after
    positions = positions.masked_fill(mask == 0, 1)

## When it is wrong
An object of your own whose method has the name of one of torch and changes the object. Methods that networks have too
(`model.to(device)`, `model.float()`) change the network and are not looked at; nor are notebooks, where a line
shows its result.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.names.without_effect import lines_without_effect
from assay.programs.program import Program
from assay.verdict import Severity, Verdict, healthy, likely


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    found = lines_without_effect(program)
    for idle in found:
        yield likely(idle.message, places=(idle.place,))
    if not found and program.is_training:
        yield healthy("no line throws away what it computes")


CLIPPED = "        clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)\n"

ILLNESS = illness(
    __name__,
    code="NOOP01",
    severity=Severity.HARMFUL,
    summary="a line computes something and throws it away, or names a method without calling it",
    fix="Take the result (x = x.masked_fill(...)), use the form with an underscore, or add the brackets of the call.",
    symptoms=(
        "masked_fill does nothing",
        "tensor does not change after the call",
        "model.eval without parentheses",
        "the line has no effect",
    ),
    scripts=Scripts(sick=with_change(CLIPPED, CLIPPED + "        ratio.clamp(max=10.0)\n"), well=GRPO),
)

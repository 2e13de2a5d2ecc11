"""
## What it checks
Names, arguments and attributes that the text uses and nothing provides: a name that is not defined, or that is read
before the first line that binds it; a call that leaves out an argument of one of the program's own functions or
classes, or gives it one that it does not have; another number of values than a function returns; an attribute that
neither the class nor any line sets; an import of a name that the file does not define; a function that torch, numpy or
transformers has in no known version (`torch.no_grade`); hidden states that were never asked for; vLLM given a network
for a name.

## Why it hurts
Python finds them only when it comes to the line. A training script has many lines that a short trial does not reach:
the second epoch, the evaluation, the other mode, the branch that logs. There it stops with a NameError, a TypeError or
an AttributeError, hours later.

## How to fix it
Define the name, or correct it: the message says which name is near. Give the arguments that the function asks for.

    # before
    with torch.no_grade():
        old = score(policy, ids)
    # after
    with torch.no_grad():
        old = score(policy, ids, start)

## When it is wrong
Names that arrive from outside of the text: a notebook that another one runs first, `exec`, names put into `globals()`,
a library that adds its own to torch. Files with `exec`, `globals()` or a star of a library are not judged by their
names.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.names.faults import faults
from assay.programs.program import Program
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import peel
from assay.verdict import Confidence, Severity, Verdict, finding, healthy, not_applicable


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    found = faults(program)
    for fault in sorted(found, key=lambda fault: not fault.reached):
        is_main = fault.place.file.partition("#")[0] == program.path
        if not fault.reached and not is_main:
            continue
        yield finding(
            fault.message,
            confidence=Confidence.LIKELY if fault.sure else Confidence.POSSIBLE,
            severity=Severity.FATAL if fault.reached else Severity.HARMFUL,
            places=(fault.place,) if fault.also is None else (fault.place, fault.also),
        )
    yield from _wrong_values(program)
    if not found and program.is_training:
        yield healthy(f"every name that the text uses is defined ({len(program.modules)} files)")


def check_run(run: WatchedRun) -> Verdict:
    failure = run.failure
    if failure is None or not failure.is_of_names or failure.place is None:
        return not_applicable("the run did not stop at a name, an argument or an attribute of the script's own")
    return finding(
        f"the script stops here with {failure.kind}: {failure.message.partition(chr(10))[0][:200]}",
        places=(failure.place,),
    )


def _wrong_values(program: Program) -> Iterator[Verdict]:
    """What a library is asked for and does not give."""
    asked = any("output_hidden_states" in line for module in program.modules for line in module.lines)
    for value in program.of("attribute") if not asked else ():
        source = value.input
        if value.name != "hidden_states" or source is None or source.op != "forward" or source.argument("output"):
            continue
        model = source.argument("model")
        is_read = any(user.op in ("index", "element", "slice") for user in value.users)
        if is_read and model is not None and peel(model, ("moved", "wrapped", "prepare", "cast")).op == "pretrained":
            yield finding(
                f"`{value.place.text}` is None: the pass ({source.place.text}) is not asked for output_hidden_states",
                confidence=Confidence.LIKELY,
                places=(value.place, source.place),
            )


ILLNESS = illness(
    __name__,
    code="NAME01",
    severity=Severity.FATAL,
    summary="the text uses a name, an argument or an attribute that does not exist",
    fix="Define the name or correct it, and give each function the arguments that it asks for.",
    symptoms=(
        "NameError: name is not defined",
        "AttributeError: module has no attribute",
        "TypeError: missing required positional argument",
        "TypeError: got an unexpected keyword argument",
        "UnboundLocalError",
        "ImportError: cannot import name",
        "ValueError: too many values to unpack",
    ),
    scripts=Scripts(sick=with_change("rewards_of(ids[:, start:])", "rewards_of(answers)"), well=GRPO),
)

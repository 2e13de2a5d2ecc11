"""
## What it checks
Each call of generate() whose tokens are trained on: the settings that change the distribution (top_k first of all) must
be said by the script. What it does not say comes from the checkpoint's generation_config.json, or from the library.

## Why it hurts
transformers draws from the 50 likeliest tokens by default, and many checkpoints ship top_k = 20, top_p = 0.8 and a
repetition penalty. The trainer's log-probs are those of the whole distribution: the ratio is below 1 at every token
before any update, and tokens outside the cut are never judged.

## How to fix it
    # before
    ids = model.generate(**prompts, do_sample=True, temperature=1.0)
    # after
    ids = model.generate(**prompts, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)

## When it is wrong
A checkpoint whose generation config is empty, under a version of transformers without the default of 50, cuts nothing.
A vocabulary of 50 tokens or fewer has nothing to cut; where the script says its size, the check knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.examples.scripts import GENERATE
from assay.programs.edits import WHOLE, Spot
from assay.programs.facts.origin import network
from assay.programs.facts.sampling.draws import OFF, Settings, settings_of, shown_number, trained_draws
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.draws import cut_settings, shown_settings
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import ancestors
from assay.verdict import Confidence, Edit, Severity, Verdict, finding, healthy

DEFAULT_TOP_K = 50  # of transformers


def check_source(program: Program) -> Iterator[Verdict]:
    seen: set[int] = set()
    for trained in trained_draws(program):
        draw = trained.draw
        if draw.op != "generate" or id(draw) in seen:
            continue
        seen.add(id(draw))
        settings = settings_of(program, draw)
        do_sample = settings.given.get("do_sample") or settings.inherited.get("do_sample")
        if settings.engine != "transformers" or settings.is_open or do_sample is None or do_sample.constant is not True:
            continue
        if settings.truncation():
            continue  # said by the script: see SAMP02
        leaks = _written_settings(settings)
        if leaks:
            named = ", ".join(f"{name} = {shown_number(value)}" for name, value in leaks.items())
            yield finding(
                f"generate() does not set {_names(list(leaks))}, and the model's generation config has {named}",
                places=(draw.place, *(value.place for value in list(leaks.values())[:1])),
            )
        elif "top_k" not in settings.given and "top_k" not in settings.inherited and not _is_small(draw):
            yield finding(
                f"generate() does not set top_k: the checkpoint's own value applies, or {DEFAULT_TOP_K} by default, "
                "and the log-probs in the loss are those of the whole distribution",
                confidence=Confidence.LIKELY if trained.is_linked else Confidence.POSSIBLE,
                places=(draw.place, *((settings.config.place,) if settings.config is not None else ())),
            )
        else:
            yield healthy("generate() sets which tokens it may draw", places=(draw.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for call in run.generations:
        if not call.config.get("do_sample"):
            continue
        cuts = cut_settings(run, call)
        leaked = {name: setting for name, setting in cuts.items() if name not in call.stated}
        if leaked:
            yield finding(
                f"generate() ran with {shown_settings(leaked)}, which the script did not ask for: the model's own "
                "generation configuration has it",
                places=(call.value.place,),
            )
        elif not cuts:
            yield healthy("generate() ran without settings that the script did not ask for")


def _written_settings(settings: Settings) -> dict[str, Value]:
    """What the script put into the model's own config and does not overrule at the call."""
    given = {name for name, value in settings.given.items() if value.constant is not None}  # None asks for the model's
    inherited = Settings(given={name: value for name, value in settings.inherited.items() if name not in given})
    return {name: value for name, value in inherited.truncation().items() if name in OFF}


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _is_small(draw: Value) -> bool:
    """Whether the model was made with a vocabulary that a top-k of 50 does not cut."""
    sizes = [value.setting("vocab_size") for value in ancestors(network(draw.input))] if draw.input is not None else []
    return any(isinstance(size, int) and size <= DEFAULT_TOP_K for size in sizes)


SICK = GENERATE.replace("top_k=0, top_p=1.0, ", "")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """What the checkpoint would set is set at the call."""
    named = [name for name in WHOLE if re.search(rf"\b{name}\b", verdict.message)]
    for names in (named, [*WHOLE][:2]):
        missing = [name for name in names if spot.argument(name) is None]
        yield spot.with_argument(", ".join(f"{name}={WHOLE[name]}" for name in missing)) if missing else None


ILLNESS = illness(
    __name__,
    code="SAMP03",
    severity=Severity.HARMFUL,
    summary="generate() takes top_k, top_p or a penalty from the checkpoint's generation config",
    fix="Say at the call: top_k=0, top_p=1.0, repetition_penalty=1.0.",
    symptoms=(
        "ratio is not 1 although I set no top_p",
        "generation config of the model changes sampling",
        "repetition penalty in generate",
    ),
    scripts=Scripts(SICK, GENERATE),
    explains=frozenset({"SAMP02", "SAMP06", "RAT01", "RAT07"}),
)

"""`python -m proof`: plants every illness in real runs, makes the healthy runs, and prints what the doctor says.

    python -m proof                                    every illness, 3 seeds
    python -m proof RAT01 SAMP01                       some of them
    python -m proof --healthy                          the healthy runs as well
    python -m proof --healthy --no-planted gspo lora   some healthy runs alone

Exit code 1 if the planted faults are named first in less than 95 % of the runs, if anything false is called proven, or
if a healthy run gets a finding above `possible`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.doctor.catalogue import KINDS, Illness, illnesses_looking_at
from assay.doctor.diagnosis import Diagnosis
from proof.child import Job, outcomes_of
from proof.healthy import HEALTHY_RUNS, Healthy
from proof.outcome import Outcome, describe, of_healthy, of_planted
from proof.plants.plant import Plant
from proof.plants.runs import plants
from proof.table import Report, save
from proof.trial import diagnose_trial, failure_of, run_trial, steps_recorded

OUT = Path("runs/proof.md")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    known, planting = illnesses_looking_at(*KINDS), plants()
    wanted = {name.lower().replace("-", "_") for name in options.codes}
    planted = known if options.planted else []
    chosen = [
        illness
        for illness in planted
        if illness.code in planting and (not wanted or {illness.code.lower(), illness.name} & wanted)
    ]
    runs = HEALTHY_RUNS if options.healthy else ()
    healthy = [run for run in runs if not wanted or any(word in run.name for word in wanted)]
    named = {illness.code.lower() for illness in known} | {illness.name for illness in known}
    unknown = [word for word in wanted if word not in named and not any(word in run.name for run in HEALTHY_RUNS)]
    if unknown:
        print(f"proof: {unknown[0]!r} is neither an illness nor a healthy run", file=sys.stderr)
        return 2
    seeds = range(1, options.seeds + 1)
    jobs = [
        *(_planted_job(illness, seed, known) for illness in chosen for seed in seeds),
        *(_healthy_job(run, seed, known) for run in healthy for seed in seeds),
    ]
    if not jobs:
        print("proof: nothing to run; see --healthy, --no-planted and --seeds", file=sys.stderr)
        return 2
    _import_what_a_trial_needs()
    outcomes = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-proof-") as root:
        for outcome in outcomes_of(jobs, Path(root), options.jobs):
            outcomes.append(outcome)
            left = (time.monotonic() - began) / len(outcomes) * (len(jobs) - len(outcomes))
            print(f"[{len(outcomes)}/{len(jobs)}, {left:.0f} s left] {line_on(outcome)}", file=sys.stderr, flush=True)
    order = {illness.code: place for place, illness in enumerate(known)}
    order |= {run.name: place for place, run in enumerate(HEALTHY_RUNS)}
    outcomes.sort(key=lambda outcome: (order[outcome.code or outcome.name], outcome.seed))
    report = Report(
        tuple(outcome for outcome in outcomes if outcome.code),
        tuple(outcome for outcome in outcomes if not outcome.code),
        tuple(illness.code for illness in planted if illness.code not in planting and not wanted),
        shlex.join(["python", "-m", "proof", *(sys.argv[1:] if arguments is None else arguments)]),
    )
    save(report, options.out)
    for line in (*report.totals(), *report.failures):
        print(line)
    print(f"{options.out} and {options.out.with_suffix('.json')} hold the tables", file=sys.stderr)
    return 1 if report.failures else 0


def line_on(outcome: Outcome) -> str:
    """One line on one trial."""
    who = f"{outcome.code or 'healthy'} {outcome.name} seed {outcome.seed}:"
    if outcome.error:
        return f"{who} BROKE: {outcome.error}"
    broke = f"; CRASHED: {', '.join(outcome.crashed)}" if outcome.crashed else ""
    false = f"; FALSE: {', '.join(outcome.false_claims)}" if outcome.false_claims else ""
    also = f"; also {', '.join(outcome.others)}" if outcome.code and outcome.others else ""
    if not outcome.code:
        word = "no finding" if not outcome.others else f"{', '.join(outcome.others)} ({outcome.message})"
    elif outcome.first:
        word = f"named first, {outcome.confidence}"
    else:
        word = f"rank {outcome.rank}, {outcome.confidence}" if outcome.found else f"NOT FOUND ({outcome.message})"
    return f"{who} {word}{also}{false}{broke} ({outcome.seconds:.1f} s)"


def _planted_job(illness: Illness, seed: int, known: Sequence[Illness]) -> Job:
    def broken(error: str) -> Outcome:
        return Outcome(illness.name, seed, illness.code, describe(plants()[illness.code]), error=error)

    def work(directory: Path) -> Outcome:
        diagnosis, facts = _try(plants()[illness.code], seed, known, directory)
        return of_planted(illness, seed, diagnosis, **facts)

    return Job(work, broken)


def _healthy_job(run: Healthy, seed: int, known: Sequence[Illness]) -> Job:
    how = "; ".join(run.settings)

    def work(directory: Path) -> Outcome:
        diagnosis, facts = _try(run.plant, seed, known, directory)
        return of_healthy(run.name, how, seed, diagnosis, error=failure_of(directory), **facts)

    return Job(work, lambda error: Outcome(run.name, seed, how=how, error=error))


def _try(plant: Plant, seed: int, known: Sequence[Illness], directory: Path) -> tuple[Diagnosis, dict[str, Any]]:
    began = time.monotonic()
    run_trial(plant, seed=seed, directory=directory)
    diagnosis = diagnose_trial(directory, plant, known)
    return diagnosis, {"steps": steps_recorded(directory), "seconds": time.monotonic() - began}


def _import_what_a_trial_needs() -> None:
    """Once, before the forks: each of them would take seconds for it."""
    for name in ("pyarrow.parquet", "assay.train.run.run", "transformers.models.llama.modeling_llama"):
        importlib.import_module(name)
    with contextlib.suppress(ImportError):  # only adapters need it
        importlib.import_module("peft")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("codes", nargs="*", metavar="CODE", help="illnesses by code or name, healthy runs by name")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each, from seed 1 on (default 3)")
    parser.add_argument("--healthy", action="store_true", help="make the healthy runs as well")
    parser.add_argument("--no-planted", dest="planted", action="store_false", help="the healthy runs alone")
    parser.add_argument("--jobs", type=int, default=1, help="trials side by side (default 1)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the tables go (default {OUT})")
    return parser


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

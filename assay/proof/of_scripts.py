"""python -m assay.proof.of_scripts: what the doctor finds in planted, clean and deliberately different scripts.

    python -m assay.proof.of_scripts                          by reading them (seconds)
    python -m assay.proof.of_scripts --watch --jobs 2         and by watching them run (an hour on two cores)
    python -m assay.proof.of_scripts ADV04 --misses           one illness, every miss named
    python -m assay.proof.of_scripts --out docs/proof-scripts.md

A planted fault counts as named if its code is among the findings and is not listed below another one as its
consequence, merely possible findings left out. A clean script or a deliberate variant must have no finding at all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from assay.proof.corpus import Specimen, as_script, specimens, write

SECONDS = 180  # for one watched script
SOURCE_BAR, WATCH_BAR = 0.90, 0.95


@dataclass(frozen=True)
class Seen:
    """What was found in one specimen by one way of looking. `findings` are code and confidence, root causes first."""

    specimen: Specimen
    how: str  # source or watch
    findings: tuple[tuple[str, str], ...]
    error: str = ""

    @property
    def counts(self) -> bool:
        """Whether the fault can be seen this way at all."""
        return self.specimen.in_source if self.how == "source" else self.specimen.in_run

    @property
    def is_named(self) -> bool:
        return any(code in self.specimen.names and sure != "possible" for code, sure in self.findings)

    @property
    def is_first(self) -> bool:
        return bool(self.findings) and self.findings[0][0] in self.specimen.names


def read(specimen: Specimen) -> Seen:
    from assay.doctor.catalogue import catalogue
    from assay.doctor.diagnosis import diagnose
    from assay.doctor.evidence.open import open_evidence

    with tempfile.TemporaryDirectory() as folder:
        evidence = open_evidence(write(specimen, Path(folder)))
        diagnosis = diagnose(evidence, [one for one in catalogue() if one.source is not None])
    return Seen(specimen, "source", tuple((word.code, word.confidence.value) for word in diagnosis.findings))


def watch(specimen: Specimen) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        script = as_script(write(specimen, Path(folder)))
        report = Path(folder) / "watched.json"
        command = [sys.executable, "-m", "assay", "watch", "--format", "json", "--out", str(report), str(script)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return Seen(specimen, "watch", (), f"took more than {SECONDS} seconds")
        if not report.exists():
            return Seen(specimen, "watch", (), done.stderr[-300:] or f"no report, exit code {done.returncode}")
        findings = json.loads(report.read_text())["findings"]
    error = f"exit code {done.returncode}" if done.returncode and not specimen.crashes else ""
    return Seen(specimen, "watch", tuple((one["code"], one["confidence"]) for one in findings), error)


def look(chosen: Sequence[Specimen], *, watched: bool, jobs: int) -> list[Seen]:
    seen = [read(one) for one in chosen]
    if watched:
        with ThreadPoolExecutor(jobs) as pool:
            for number, one in enumerate(pool.map(watch, chosen), 1):
                seen.append(one)
                if sys.stderr.isatty() or number % 25 == 0:
                    print(f"\r{number} of {len(chosen)} scripts watched", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return seen


def main(arguments: Sequence[str] | None = None) -> int:
    from assay.proof.script_table import breaches, page, summary

    parser = argparse.ArgumentParser(prog="python -m assay.proof.of_scripts", description=__doc__.partition("\n")[0])
    parser.add_argument("codes", nargs="*", help="only these illnesses, by code")
    parser.add_argument("--watch", action="store_true", help="run the scripts under `assay watch` as well")
    parser.add_argument("--jobs", type=int, default=2, help="scripts watched side by side")
    parser.add_argument("--misses", action="store_true", help="name every miss and every false alarm")
    parser.add_argument("--out", type=Path, help="write the table as Markdown")
    options = parser.parse_args(arguments)
    wanted = {code.upper() for code in options.codes}
    chosen = [one for one in specimens() if not wanted or one.code in wanted]
    seen = look(chosen, watched=options.watch, jobs=options.jobs)
    print(summary(seen, misses=options.misses))
    if options.out is not None:
        options.out.write_text(page(seen))
    return 1 if breaches(seen) else 0


if __name__ == "__main__":
    raise SystemExit(main())

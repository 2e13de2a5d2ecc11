"""python -m proof.of_scripts: what the doctor finds in planted, clean and deliberately different scripts.

    python -m proof.of_scripts                          by reading them (seconds)
    python -m proof.of_scripts --watch --jobs 2         and by watching them run (ten minutes on two cores)
    python -m proof.of_scripts ADV04 --misses           one illness, every miss named
    python -m proof.of_scripts --out docs/proof-scripts.md

A planted fault counts as named if its code is among the findings and is not listed below another one as its
consequence, merely possible findings left out. A clean script or a deliberate variant must have no finding at all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proof.corpus import Specimen, as_script, specimens, write
from proof.watching import watch_all

SECONDS = 180  # for one watched script
SOURCE_BAR, WATCH_BAR = 0.90, 0.95


@dataclass(frozen=True)
class Seen:
    """What was found in one specimen by one way of looking. `findings` are code and confidence, root causes first."""

    specimen: Specimen
    how: str  # source (the text alone), run (the run alone) or watch (both)
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
        diagnosis = diagnose(evidence, [illness for illness in catalogue() if illness.source is not None])
    return Seen(specimen, "source", tuple((word.code, word.confidence.value) for word in diagnosis.findings))


def watch(chosen: Sequence[Specimen], jobs: int) -> list[Seen]:
    """Two of each: by the run alone, and by the run and the text together."""
    seen: dict[str, list[Seen]] = {}
    with tempfile.TemporaryDirectory() as folder:
        by_path: dict[str, Specimen] = {}
        for number, specimen in enumerate(chosen):
            own = Path(folder) / str(number)
            own.mkdir()
            by_path[str(as_script(write(specimen, own)))] = specimen
        for number, result in enumerate(watch_all(list(by_path), jobs=jobs, seconds=SECONDS), 1):
            specimen = by_path[result["path"]]
            code, error = result["code"], result["error"] or "; ".join(result["crashed"])
            error = error or (f"exit code {code}" if code and not specimen.crashes else "")
            seen[result["path"]] = [
                Seen(specimen, how, tuple((found, sure) for found, sure in result[name]), error)
                for how, name in (("run", "run"), ("watch", "all"))
            ]
            if sys.stderr.isatty() or number % 25 == 0:
                print(f"\r{number} of {len(chosen)} scripts watched", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return [entry for path in by_path for entry in seen[path]]


def look(chosen: Sequence[Specimen], *, watched: bool, jobs: int) -> list[Seen]:
    return [*(read(specimen) for specimen in chosen), *(watch(chosen, jobs) if watched else ())]


def main(arguments: Sequence[str] | None = None) -> int:
    from proof.script_table import breaches, page, summary

    parser = argparse.ArgumentParser(prog="python -m proof.of_scripts", description=__doc__.partition("\n")[0])
    parser.add_argument("codes", nargs="*", help="only these illnesses, by code")
    parser.add_argument("--watch", action="store_true", help="run the scripts under `assay watch` as well")
    parser.add_argument("--jobs", type=int, default=2, help="scripts watched side by side")
    parser.add_argument("--misses", action="store_true", help="name every miss and every false alarm")
    parser.add_argument("--out", type=Path, help="write the table as Markdown")
    options = parser.parse_args(arguments)
    wanted = {code.upper() for code in options.codes}
    chosen = [specimen for specimen in specimens() if not wanted or specimen.code in wanted]
    seen = look(chosen, watched=options.watch, jobs=options.jobs)
    print(summary(seen, misses=options.misses))
    if options.out is not None:
        options.out.write_text(page(seen))
    return 1 if breaches(seen) else 0


if __name__ == "__main__":
    raise SystemExit(main())

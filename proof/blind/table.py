"""python -m proof.blind.table [docs/proof-blind.md]: labels and judged.jsonl --> the page."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proof.blind.run import DOORS, HERE, SPECIMENS

HEAD = """# Faults that nobody listed

What the doctor is tested on in [proof.md](proof.md) was planted by people who know its checks, and that flatters it.
The specimens of this page were written by people who had not read the checks and knew only the names of the laws:
{plants} planted faults and {sound} sound but unusual programs in three rounds, by six doors: our own trainer, TRL with
`attach`, watched scripts (language models, and classic RL exercises), loops with `assay.observe`, logs and rollout
dumps of other trainers.

The first round was open while the doctor was fixed; when half of it was still closed, 57 % of that half were named
first. The second round was written while the fixes were made, and nobody who made them saw it; where numbers are
handed over 89 % were named first, in scripts, where they must be recognised, 36 %. It was opened then, and the watching
of scripts was rebuilt. The third round is scripts only, written after that and counted once: **its figures, and for
the other doors those of the second, are what a stranger's fault can expect.** Whether a finding names the fault was
judged from its text and the label, without looking at the specimen: "named first" means that the first finding leads to
the right place, "law named" that any finding shows the broken law.

Measured on {date} with `python -m proof.blind.run out.json --round 3` (and 2, and 1); the verdicts are in
`proof/blind/judged.jsonl`.
"""
DATE = "2026-11-16"


def main() -> None:
    page = page_text()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page)
    else:
        print(page)


def page_text() -> str:
    rows = list(_rows())
    plants = [row for row in rows if row["law"] != "healthy"]
    parts = [HEAD.format(plants=len(plants), sound=len(rows) - len(plants), date=DATE)]
    for number, title in (
        (3, "Third round: closed, scripts"),
        (2, "Second round: closed when it was counted"),
        (1, "First round: open while fixing"),
    ):
        own = [row for row in rows if row["round"] == number]
        parts.append(f"## {title}\n\n{_table('door', own, _doors(own))}\n\n{_table('law', own, _laws(own))}\n")
    return "\n".join(parts)


def _doors(rows: list[dict[str, Any]]) -> list[str]:
    return [door for door in DOORS if any(row["door"] == door for row in rows)]


def _rows() -> Iterable[dict[str, Any]]:
    judged = {line["id"]: line for line in map(json.loads, (HERE / "judged.jsonl").read_text().splitlines())}
    for number, folder in SPECIMENS.items():
        for door in DOORS:
            labels = folder / door / "labels.jsonl"
            for line in labels.read_text().splitlines() if labels.exists() else ():
                label = json.loads(line)
                verdict = judged[f"{number}/{door}/{label['file'].rstrip('/')}"]
                yield {**verdict, "door": door, "law": label["law"], "round": number}


def _laws(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({row["law"] for row in rows} - {"healthy"}, key=lambda law: (law == "death", len(law), law))


def _table(by: str, rows: list[dict[str, Any]], order: Iterable[str]) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for name in (row[by], "all"):
            if row["law"] == "healthy":
                counts[name].update(sound=1, alarms=bool(row["above_possible"]))
            else:
                counts[name].update(
                    plants=1, first=row["named_first"], law=row["law_named"], false=len(row["false_proven"])
                )
    lines = [
        f"| {by} | planted | named first | law named | false proven | sound | above possible |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in (*order, "all"):
        count = counts[name]
        sound = (str(count["sound"]), str(count["alarms"])) if count["sound"] else ("", "")
        planted = [str(count[what]) for what in ("plants", "first", "law", "false")]
        if name == "all":
            planted[1] += f" ({count['first'] / count['plants']:.0%})"
            planted[2] += f" ({count['law'] / count['plants']:.0%})"
        lines.append(f"| {' | '.join((name, *planted, *sound))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

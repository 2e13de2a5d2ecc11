"""The catalogue, read by people: the list of illnesses, the explanation of one, and the table in docs/doctor.md.

python -m assay.doctor.explain --table docs/doctor.md      # writes the table anew, between its two marks
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.doctor.catalogue import Illness, catalogue
from assay.doctor.report.select import UnknownCode, nearest
from assay.doctor.report.text import bold, wrapped
from assay.verdict import Severity

FAMILIES = {
    "SAMP": "sampling",
    "ALGN": "tokens, positions and rows belong together",
    "MASK": "the loss mask",
    "ADV": "advantages",
    "RAT": "the ratio new / old",
    "CLIP": "clipping",
    "KL": "the reference",
    "LOSS": "the loss",
    "OPT": "the optimizer",
    "SYNC": "weights of trainer and sampler",
    "NUM": "precision",
    "MODE": "train and eval mode",
    "REW": "the reward",
    "PERF": "speed",
    "HYP": "settings",
    "MET": "curves",
}
BEGIN, END = "<!-- illnesses: begin -->", "<!-- illnesses: end -->"
_KINDS = ("batch", "curves", "source", "run")  # what an illness can be seen in


@dataclass(frozen=True)
class Entry:
    """One code that `assay explain` knows, whoever looks for it."""

    code: str
    name: str
    severity: Severity
    summary: str
    explanation: str
    fix: str = ""
    looks_at: tuple[str, ...] = ()  # batch, curves, source, run, reward
    explains: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()

    @classmethod
    def of(cls, illness: Illness) -> Entry:
        kinds = tuple(kind for kind in _KINDS if getattr(illness, kind) is not None)
        return cls(
            illness.code,
            illness.name,
            illness.severity,
            illness.summary,
            illness.explanation.strip(),
            illness.fix,
            kinds,
            tuple(sorted(illness.explains)),
            illness.symptoms,
        )

    @property
    def family(self) -> str:
        return self.code.rstrip("0123456789")


def entries(others: Sequence[Entry] = ()) -> list[Entry]:
    """All codes by family. `others` are those of reward-check; where both know a code, the doctor's text stands."""
    known = {entry.code: entry for entry in others}
    for entry in map(Entry.of, catalogue()):
        shared = known[entry.code].looks_at if entry.code in known else ()
        known[entry.code] = replace(entry, looks_at=(*entry.looks_at, *shared))
    order = list(FAMILIES)
    return sorted(known.values(), key=lambda entry: (order.index(entry.family), entry.code))


def find(text: str, known: Sequence[Entry]) -> Entry | None:
    """The entry of that code or name. None of plain words; UnknownCode of what looks like a code or a name."""
    wanted = text.strip().lower().replace("-", "_")
    for entry in known:
        if wanted in (entry.code.lower(), entry.name):
            return entry
    if not re.fullmatch(r"[a-z]{2,5}\d{1,2}|\w+_\w+", wanted):
        return None
    names = [*(entry.code for entry in known), *(entry.name for entry in known)]
    raise UnknownCode(f"{text[:40]!r} is not a code or a name of an illness; {nearest(text, names)}")


def answers(text: str, found: Sequence[Entry], *, width: int) -> str:
    """What plain words lead to: a line for each illness, and what to run next."""
    names = max(len(entry.name) for entry in found)
    lines = [*wrapped(f"{text!r} may be:", width), ""]
    for entry in found:
        head = f"  {entry.code:<7}{entry.severity:<9}{entry.name:<{names}}  "
        lines += wrapped(entry.summary, width, head, " " * min(len(head), width // 2))
    lines += ["", *wrapped(f"read more:     assay explain {found[0].code}", width, "", " " * 15)]
    codes = [entry.code for entry in found if entry.looks_at != ("reward",)]
    if codes:
        sentence = f"look for them: assay doctor RUN, SCRIPT or LOG --select {','.join(codes)}"
        lines += wrapped(sentence, width, "", " " * 15)
    if any("reward" in entry.looks_at for entry in found):
        lines += wrapped("try a reward:  assay reward-check FILE.py:FUNCTION", width, "", " " * 15)
    return "\n".join(lines)


def listed(known: Sequence[Entry], *, width: int, colour: bool) -> str:
    lines: list[str] = []
    names = max(len(entry.name) for entry in known)
    for family, words in FAMILIES.items():
        members = [entry for entry in known if entry.family == family]
        of_rewards = [entry.code for entry in members if entry.looks_at == ("reward",)]
        whose = f" ({of_rewards[0]} to {of_rewards[-1]}: assay reward-check)" if of_rewards else ""
        if members:
            lines += [*([""] if lines else []), bold(f"{family}  {words}{whose}", colour)]
        for entry in members:
            head = f"  {entry.code:<7}{entry.severity:<9}{entry.name:<{names}}  "
            lines += wrapped(entry.summary, width, head, " " * min(len(head), width // 2))
    return "\n".join(lines)


def explained(entry: Entry, *, width: int, colour: bool) -> str:
    """The explanation for a terminal: paragraphs fill its width, code keeps its lines."""
    lines = [bold(f"{entry.code} {entry.name}", colour) + f" ({entry.severity})", *wrapped(entry.summary, width)]
    for block in re.split(r"\n\s*\n", entry.explanation):
        lines.append("")
        if block.startswith("## "):
            heading, _, block = block.partition("\n")
            lines.append(bold(heading.removeprefix("## "), colour))
        for is_code, members in groupby(block.splitlines(), key=lambda line: line.startswith("    ")):
            part = list(members)
            lines += part if is_code else wrapped(" ".join(" ".join(part).split()), width)
    if entry.explains:
        lines += ["", *wrapped(f"What may follow from it: {', '.join(entry.explains)}", width)]
    if "reward" in entry.looks_at:
        also = "Also looked" if len(entry.looks_at) > 1 else "Looked"
        lines += ["", f"{also} for by: assay reward-check"]
    return "\n".join(lines)


def as_json(shown: Entry | Sequence[Entry]) -> str:
    """One illness, or several: all of them, or the best answers to plain words first."""
    if isinstance(shown, Entry):
        return json.dumps(_mapping(shown), indent=2)
    return json.dumps({"illnesses": [_mapping(entry) for entry in shown]}, indent=2)


def table() -> str:
    """All illnesses of the catalogue, as in docs/doctor.md."""
    rows = ["| code | name | severity | looks at | what is wrong |", "|---|---|---|---|---|"]
    for entry in entries():
        summary = entry.summary.replace("|", "\\|")
        looks_at = ", ".join(entry.looks_at)
        rows.append(f"| {entry.code} | `{entry.name}` | {entry.severity} | {looks_at} | {summary} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with the table between its marks written anew."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must hold {BEGIN} and {END} once each")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def _mapping(entry: Entry) -> dict[str, Any]:
    return {
        "code": entry.code,
        "name": entry.name,
        "severity": entry.severity.value,
        "summary": entry.summary,
        "fix": entry.fix,
        "looks_at": list(entry.looks_at),
        "explains": list(entry.explains),
        "symptoms": list(entry.symptoms),
        "explanation": entry.explanation,
    }


def main(words: Sequence[str]) -> int:
    if len(words) != 2 or words[0] != "--table":
        print("usage: python -m assay.doctor.explain --table docs/doctor.md", file=sys.stderr)
        return 2
    file = Path(words[1])
    file.write_text(with_table(file.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

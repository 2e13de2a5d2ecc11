"""The catalogue, read by people: the list of illnesses, the explanation of one, and the table in docs/doctor.md.

python -m assay.doctor.explain --table docs/doctor.md      # writes the table again, between its two marks
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.doctor.catalogue import KINDS, Illness, as_name, by_code, catalogue
from assay.doctor.report.select import UnknownCode, nearest
from assay.doctor.report.text import bold, wrap

FAMILIES = {
    "LAW": "laws that every correct update obeys",
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
    "NAME": "names and arguments in the text",
    "NOOP": "lines without effect",
    "MET": "curves",
}
BEGIN, END = "<!-- illnesses: begin -->", "<!-- illnesses: end -->"


def by_family() -> list[Illness]:
    """All illnesses in the order of FAMILIES."""
    order = list(FAMILIES)
    return sorted(catalogue(), key=lambda illness: (order.index(illness.family), illness.code))


def looks_at(illness: Illness) -> list[str]:
    return [kind for kind in (*KINDS, "reward") if illness.looks_at(kind)]


def find(text: str) -> Illness | None:
    """The illness of that code or name. None of plain words; UnknownCode of what looks like a code or a name."""
    illness = by_code(text)
    if illness is None and re.fullmatch(r"[a-z]{2,5}\d{1,2}|\w+_\w+", as_name(text)):
        raise UnknownCode(f"{text[:40]!r} is not a code or a name of an illness; {nearest(text, catalogue())}")
    return illness


def answers(text: str, found: Sequence[Illness], *, width: int) -> str:
    """What plain words lead to: a line for each illness, and what to run next."""
    lines = [*wrap(f"{text!r} may be:", width), "", *_rows(found, found, width)]
    lines += ["", *wrap(f"read more:     assay explain {found[0].code}", width, "", " " * 15)]
    codes = [illness.code for illness in found if not illness.needs_a_call]
    if codes:
        sentence = f"look for them: assay doctor RUN, SCRIPT or LOG --select {','.join(codes)}"
        lines += wrap(sentence, width, "", " " * 15)
    if any(illness.looks_at("reward") for illness in found):
        lines += wrap("try a reward:  assay reward-check FILE.py:FUNCTION", width, "", " " * 15)
    return "\n".join(lines)


def list_illnesses(known: Sequence[Illness], *, width: int, colour: bool) -> str:
    lines: list[str] = []
    for family, words in FAMILIES.items():
        members = [illness for illness in known if illness.family == family]
        of_rewards = [illness.code for illness in members if illness.needs_a_call]
        whose = f" ({of_rewards[0]} to {of_rewards[-1]}: assay reward-check)" if of_rewards else ""
        if members:
            lines += [*([""] if lines else []), bold(f"{family}  {words}{whose}", colour)]
        lines += _rows(members, known, width)
    return "\n".join(lines)


def _rows(illnesses: Sequence[Illness], beside: Sequence[Illness], width: int) -> list[str]:
    """A line or more of each illness; its name is as wide as the longest of those that stand `beside` it."""
    names = max(len(illness.name) for illness in beside)
    lines = []
    for illness in illnesses:
        head = f"  {illness.code:<7}{illness.severity:<9}{illness.name:<{names}}  "
        lines += wrap(illness.summary, width, head, " " * min(len(head), width // 2))
    return lines


def page_on(illness: Illness, *, width: int, colour: bool) -> str:
    """The explanation for a terminal: paragraphs fill its width, code keeps its lines."""
    title = bold(f"{illness.code} {illness.name}", colour)
    lines = [f"{title} ({illness.severity})", *wrap(illness.summary, width)]
    for block in re.split(r"\n\s*\n", illness.explanation.strip()):
        lines.append("")
        if block.startswith("## "):
            heading, _, block = block.partition("\n")
            lines.append(bold(heading.removeprefix("## "), colour))
        for is_code, members in groupby(block.splitlines(), key=lambda line: line.startswith("    ")):
            part = list(members)
            lines += part if is_code else wrap(" ".join(" ".join(part).split()), width)
    if illness.explains:
        lines += ["", *wrap(f"What may follow from it: {', '.join(sorted(illness.explains))}", width)]
    if illness.file:
        lines += ["", f"Its file: {illness.file}"]
    if illness.looks_at("reward"):
        also = "Looked" if illness.needs_a_call else "Also looked"
        lines += ["", f"{also} for by: assay reward-check"]
    return "\n".join(lines)


def as_json(shown: Illness | Sequence[Illness]) -> str:
    """One illness, or several: all of them, or the best answers to plain words first."""
    if isinstance(shown, Illness):
        return json.dumps(_mapping(shown), indent=2)
    return json.dumps({"illnesses": [_mapping(illness) for illness in shown]}, indent=2)


def table() -> str:
    """All illnesses of the catalogue, as in docs/doctor.md."""
    rows = ["| code | name | severity | looks at | what is wrong |", "|---|---|---|---|---|"]
    for illness in by_family():
        summary = illness.summary.replace("|", "\\|")
        kinds = ", ".join(looks_at(illness))
        rows.append(f"| {illness.code} | `{illness.name}` | {illness.severity} | {kinds} | {summary} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with a new table between its marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must hold {BEGIN} and {END} once each")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def _mapping(illness: Illness) -> dict[str, Any]:
    return {
        "code": illness.code,
        "name": illness.name,
        "severity": illness.severity.value,
        "summary": illness.summary,
        "fix": illness.fix,
        "looks_at": looks_at(illness),
        "explains": sorted(illness.explains),
        "symptoms": list(illness.symptoms),
        "explanation": illness.explanation.strip(),
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

"""The scripts that prove the doctor of scripts: clean ones, deliberate variants of them, and planted faults.

A plant is a set of exact edits of a clean script, in plants/scripts/<script>.toml. Each text that an edit looks for
occurs once, so that a plant that no longer fits is noticed.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS, PLANTS = HERE / "scripts", HERE / "plants" / "scripts"
# What plants can be measured by: of which codes a text shows them, and of which a run does, by a check of runs or by a
# check of the batches that were recorded. Kept by hand; a code that is not listed does not count in the tables.
SEEN_IN_SOURCE = frozenset(
    "SAMP01 SAMP02 SAMP03 SAMP04 SAMP05 SAMP07 ALGN01 ALGN02 ALGN03 ALGN05 ALGN06 ALGN07 ALGN08 ALGN09 MASK01 MASK02 "
    "MASK03 MASK04 MASK06 MASK07 MASK08 ADV01 ADV02 ADV03 ADV04 ADV05 ADV06 ADV07 ADV08 ADV10 RAT02 RAT03 RAT04 RAT05 "
    "RAT06 RAT07 RAT08 CLIP01 CLIP02 KL01 KL02 KL03 KL04 KL05 LOSS01 LOSS02 LOSS03 LOSS04 OPT01 OPT02 OPT03 OPT04 "
    "SYNC01 NUM01 NUM02 MODE01 REW01 PERF01 PERF02 HYP01 MET06".split()
)
SEEN_IN_RUN = frozenset(
    "SAMP01 SAMP02 SAMP03 SAMP04 SAMP05 SAMP07 ALGN02 ALGN04 ALGN05 ALGN06 ALGN10 MASK04 ADV08 ADV10 RAT01 RAT02 RAT03 "
    "RAT04 RAT05 RAT08 CLIP01 KL01 KL02 KL05 LOSS01 LOSS02 LOSS03 LOSS04 OPT01 OPT02 OPT03 OPT04 SYNC01 NUM01 NUM02 "
    "MODE01 REW01 PERF01 PERF02".split()
)


@dataclass(frozen=True)
class Edit:
    old: str
    new: str
    file: str = ""  # of a script in several files; "": its main one


@dataclass(frozen=True)
class Specimen:
    """One script to be looked at. `code` is the planted illness; "" means that nothing may be found."""

    script: str
    form: str
    edits: tuple[Edit, ...] = ()
    code: str = ""
    also: frozenset[str] = frozenset()  # codes that are an equally right name
    in_source: bool = True  # whether the text shows it
    in_run: bool = True  # whether a run shows it
    crashes: bool = False

    @property
    def names(self) -> frozenset[str]:
        return self.also | {self.code}


class CorpusError(ValueError):
    """A plant that does not fit its script."""


def clean_scripts() -> list[str]:
    found = [path for path in SCRIPTS.iterdir() if path.suffix in (".py", ".ipynb") or (path / "main.py").exists()]
    return sorted(path.name for path in found)


def specimens() -> list[Specimen]:
    """The clean scripts, their deliberate variants, and the planted ones."""
    found = [Specimen(script, "clean") for script in clean_scripts()]
    for script in clean_scripts():
        file = PLANTS / f"{script.partition('.')[0]}.toml"
        if file.exists():
            entries = tomllib.loads(file.read_text())
            found += [_specimen(script, entry, "") for entry in entries.get("variant", [])]
            found += [_specimen(script, entry, entry["code"]) for entry in entries.get("plant", [])]
    return found


def _specimen(script: str, entry: dict[str, Any], code: str) -> Specimen:
    return Specimen(
        script,
        entry["form"],
        tuple(Edit(edit["old"], edit["new"], edit.get("file", "")) for edit in entry["edits"]),
        code,
        frozenset(entry.get("also", ())),
        entry.get("source", code in SEEN_IN_SOURCE),
        entry.get("watch", code in SEEN_IN_RUN),
        entry.get("crashes", False),
    )


def write(specimen: Specimen, folder: Path) -> Path:
    """Puts the script into an empty folder and returns its main file."""
    original = SCRIPTS / specimen.script
    if original.is_dir():
        shutil.copytree(original, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        main = folder / "main.py"
    else:
        main = folder / original.name
        shutil.copyfile(original, main)
    for edit in specimen.edits:
        file = folder / edit.file if edit.file else main
        text = file.read_text()
        if text.count(edit.old) != 1:
            raise CorpusError(f"{specimen.script}: {specimen.form}: {edit.old!r} occurs {text.count(edit.old)} times")
        file.write_text(text.replace(edit.old, edit.new))
    return main


def as_script(path: Path) -> Path:
    """A notebook as a script that can be run: its code cells without magics."""
    if path.suffix != ".ipynb":
        return path
    cells = json.loads(path.read_text())["cells"]
    rows = ["".join(cell["source"]).splitlines() for cell in cells if cell["cell_type"] == "code"]
    lines = ["pass" if row.startswith(("%", "!")) else row for cell in rows for row in cell]
    script = path.with_suffix(".py")
    script.write_text("\n".join(lines) + "\n")
    return script

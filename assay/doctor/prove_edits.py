"""Findings in scripts --> the same with an edit where one is proven.

An illness proposes edits; one is kept if the script, read again with it, parses, is called healthy by the same check,
has no other finding than before, and nothing that was healthy before went out of sight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from assay.doctor.catalogue import Edits, illnesses_looking_at
from assay.doctor.diagnosis import Diagnosis, Word, diagnose
from assay.doctor.evidence import Evidence
from assay.machine.faults import FAULTS
from assay.programs.edits import Spot, Text, applied
from assay.programs.program import Program
from assay.programs.read.script import read_program
from assay.programs.read.text import SourceError, decoded, read_bytes, read_module
from assay.verdict import Confidence, Edit, Place, State, Verdict

MOST_CANDIDATES = 6  # of one finding: each costs a reading of the whole program
_BLIND = (State.NOT_APPLICABLE, State.NOT_ENOUGH_DATA, State.CRASHED)


@dataclass
class Script:
    """One program on disk, with the texts of some of its files in place of what the files hold."""

    path: Path
    texts: Mapping[Path, str] = field(default_factory=dict)  # by resolved path
    program: Program | None = None  # where it was read already
    _files: dict[str, Text | None] = field(default_factory=dict)
    _words: dict[str, Word] | None = None

    @property
    def words(self) -> dict[str, Word]:
        """What all checks of a text say, by code."""
        if self._words is None:
            program = self.program or read_program(self.path, self.texts)
            found = diagnose(Evidence(programs=(program,)), illnesses_looking_at("source")).words
            self._words = {word.code: word for word in found if word.illness.source is not None}
        return self._words

    def at(self, place: Place) -> Spot | None:
        """What stands at a place; None in a cell of a notebook."""
        if place.file not in self._files:
            self._files[place.file] = self._text(Path(place.file))
        text = self._files[place.file]
        return None if text is None else text.at(place)

    def _text(self, path: Path) -> Text | None:
        try:
            module = read_module(path, path.stem, text=self.texts.get(path.resolve()))
        except SourceError:
            return None
        return None if module.shift is not None else Text(str(path), module.lines, module.tree)

    def current(self, path: Path) -> str:
        known = self.texts.get(path.resolve())
        return decoded(read_bytes(path, str(path)))[0].removeprefix("\ufeff") if known is None else known

    def after(self, edits: Sequence[Edit]) -> Script:
        texts = dict(self.texts)
        for file in dict.fromkeys(edit.place.file for edit in edits):
            path = Path(file)
            texts[path.resolve()] = applied(self.current(path), [edit for edit in edits if edit.place.file == file])
        return Script(self.path, texts)

    def is_cured(self, edits: Sequence[Edit], codes: set[str]) -> bool:
        """Whether edits end a finding of each of these codes, bring no other one and take nothing out of sight."""
        try:
            words = self.after(edits).words
        except SourceError:
            return False
        for code, before in self.words.items():
            seen, left = _count(before), _count(words[code])
            state = words[code].verdict.state
            if left > seen or (code in codes and left >= seen):
                return False
            if code in codes and not left and state is not State.HEALTHY:
                return False  # it is not cured, it is only not recognised any more
            if before.verdict.state is State.HEALTHY and state in _BLIND:
                return False
        return True

    def edit_of(self, word: Word) -> Edit | None:
        """The first proposed edit that ends the finding; a merely possible finding has none that is safe."""
        known = self.words.get(word.code)
        if word.illness.edits is None or known is None or not _count(known):
            return None
        verdicts = [word.verdict] if word.verdict == known.verdict else [word.verdict, known.verdict]
        for edit in islice(self._proposed(word.illness.edits, verdicts), MOST_CANDIDATES):
            if self.is_cured([edit], {word.code}):
                return replace(edit, safe=edit.safe and word.confidence is not Confidence.POSSIBLE)
        return None

    def _proposed(self, edits: Edits, verdicts: Sequence[Verdict]) -> Iterator[Edit]:
        """Where a run saw it, then where the text shows it."""
        for verdict in verdicts:
            spots = [self.at(place) for place in verdict.places]
            if spots and spots[0] is not None:
                others = [spot for spot in spots[1:] if spot is not None]
                yield from (edit for edit in edits(verdict, spots[0], others) if edit is not None)


def with_edits(diagnosis: Diagnosis, programs: Sequence[Program], texts: Mapping[Path, str] | None = None) -> Diagnosis:
    """Each finding in these programs with its edit. A fault of ours costs an edit, never the report.

    `texts`, by resolved path, are those the programs were read from in place of what the files hold.
    """
    scripts = [Script(Path(program.path), texts or {}, program) for program in programs]
    return replace(diagnosis, words=tuple(_with_edit(word, scripts) for word in diagnosis.words))


def _with_edit(word: Word, scripts: Sequence[Script]) -> Word:
    if word.verdict.state is not State.FINDING or not word.verdict.places:
        return word
    for script in scripts:
        try:
            edit = script.edit_of(word)
        except FAULTS:
            continue
        if edit is not None:
            return replace(word, verdict=replace(word.verdict, edit=edit))
    return word


def _count(word: Word | None) -> int:
    """The places of a finding."""
    if word is None or word.verdict.state is not State.FINDING:
        return 0
    return max(len(word.verdict.found_at), 1)

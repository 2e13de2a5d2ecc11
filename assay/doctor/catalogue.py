"""The catalogue: one illness is one file in illnesses/FOLDER/: how it is found, explained and fixed.

A file defines one `ILLNESS`. Its docstring is the explanation, with the fixed headings of HEADINGS; `sick` and `well`
are neighbours: evidence that differs by the smallest change that matters.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

from assay.doctor.evidence import Batch, Curves, Evidence, RewardTrial
from assay.programs.edits import Spot
from assay.programs.program import Program
from assay.programs.run.watched import WatchedRun
from assay.verdict import Edit, Place, Severity, State, Verdict

HEADINGS = ("What it checks", "Why it hurts", "How to fix it", "When it is wrong")

BatchCheck = Callable[[Batch], Verdict]
BatchesCheck = Callable[[Sequence[Batch]], Verdict]  # of one run, in the order of its steps
CurvesCheck = Callable[[Curves], Verdict]
# one verdict for each thing that was looked at, the healthy ones too; none: the script has nothing of the kind
SourceCheck = Callable[[Program], Iterable[Verdict]]
RunCheck = Callable[[WatchedRun], Iterable[Verdict]]
RewardCheck = Callable[[RewardTrial], Verdict]
# how the text may have to change, the likeliest first: what stands at the finding's place, and at its other places
Edits = Callable[[Verdict, Spot, Sequence[Spot]], Iterable[Edit | None]]
KINDS = (
    "batch",
    "batches",
    "curves",
    "source",
    "run",
)  # of evidence that a run or a script gives; a reward must be called


@dataclass(frozen=True)
class Scripts:
    """Two neighbours as text, short enough to read: a script with the illness and one without."""

    sick: str
    well: str


@dataclass(frozen=True)
class Illness:
    code: str
    name: str  # the illness in words, after "this run has": temperature_mismatch
    severity: Severity
    summary: str  # one line: what is wrong
    fix: str  # one or two sentences: what to change
    explanation: str  # the file's __doc__
    sick: Callable[[], Evidence] | None = None  # with `batch`, `curves` or `reward`
    well: Callable[[], Evidence] | None = None
    batch: BatchCheck | None = None
    curves: CurvesCheck | None = None
    source: SourceCheck | None = None
    scripts: Scripts | None = None  # with `source`
    run: RunCheck | None = None
    reward: RewardCheck | None = None
    batches: BatchesCheck | None = None
    edits: Edits | None = None
    explains: frozenset[str] = frozenset()  # codes whose findings follow from this one
    explained_by: frozenset[str] = frozenset()  # of a law: families and codes that are a cause of its finding
    symptoms: tuple[str, ...] = ()  # what a user sees, in the words that a user types into a search
    file: str = ""  # where all of it is: assay/doctor/illnesses/...

    @property
    def family(self) -> str:
        return self.code.rstrip("0123456789")

    def looks_at(self, *kinds: str) -> bool:
        """Whether it has a check of evidence of one of these kinds."""
        return any(getattr(self, kind) is not None for kind in kinds)

    def can_cause(self, other: Illness) -> bool:
        """Whether a finding of `other` follows from one of this illness."""
        return other.code in self.explains or not other.explained_by.isdisjoint((self.family, self.code))

    @property
    def needs_a_call(self) -> bool:
        """Whether neither a run nor a script can show it: a reward must be called."""
        return self.reward is not None and not self.looks_at(*KINDS)


def illness(module_name: str, **words: Any) -> Illness:
    """The illness of a file, which calls this with its `__name__` at its end.

    The file's docstring is the explanation and its name is the illness's; its functions check_batch, check_curves,
    check_source, check_run and check_reward are the checks, `edits` the changes of a script that may end a finding.
    `words` are the other fields.
    """
    module = sys.modules[module_name]
    checks: dict[str, Any] = {kind: getattr(module, f"check_{kind}", None) for kind in (*KINDS, "reward")}
    path = f"{module_name.replace('.', '/')}.py"
    words = {"name": module_name.rpartition(".")[2], **words}  # a law has a longer name than its file
    edits = getattr(module, "edits", None)
    return Illness(explanation=module.__doc__ or "", file=path, edits=edits, **checks, **words)


def one_per_place(check: SourceCheck) -> SourceCheck:
    """A check that gives each place at most one finding and one other verdict: a function that is called twice is read
    twice."""

    @wraps(check)
    def first_verdicts(program: Program) -> Iterator[Verdict]:
        seen: set[tuple[bool, tuple[Place, ...]]] = set()
        for verdict in check(program):
            key = verdict.state is State.FINDING, verdict.places[:1]
            if key not in seen:
                seen.add(key)
                yield verdict

    return first_verdicts


@cache
def catalogue() -> tuple[Illness, ...]:
    """All illnesses and laws by code."""
    from assay.doctor import illnesses, laws

    modules = [
        importlib.import_module(module.name)
        for package in (illnesses, laws)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.ispkg
    ]
    found = [module.ILLNESS for module in modules if hasattr(module, "ILLNESS")]
    return tuple(sorted(found, key=lambda illness: illness.code))


@cache
def illnesses_looking_at(*kinds: str) -> tuple[Illness, ...]:
    return tuple(illness for illness in catalogue() if illness.looks_at(*kinds))


def by_code(code: str) -> Illness | None:
    """An illness by its code or its name, whatever the case: RAT01, rat01, ratio_not_one, ratio-not-one."""
    wanted = as_name(code)
    return next((illness for illness in catalogue() if wanted in (illness.code.lower(), illness.name)), None)


def as_name(text: str) -> str:
    return text.strip().lower().replace("-", "_")

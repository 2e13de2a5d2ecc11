"""The results of calling a reward on texts whose order is known without a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from assay.machine.terminal import escape, quote
from assay.types import Failure

PROBLEMS_IN_ALL_FORMS = 4  # the other forms of an answer are tried on this many problems: each costs a call
_LONGEST_ERROR = 160


class Role(StrEnum):
    """What a probe is for."""

    RIGHT = "right answer"
    WRONG = "wrong answer"  # the right answer of another problem
    EMPTY = "empty answer"
    NONSENSE = "nonsense"
    LISTED = "list of answers"  # the right answer is in it, neither first nor last
    EXTENDED = "right answer with a character more"
    SHORTCUT = "text that took no solving"
    LONG = "wrong answer after so much talk"
    HOSTILE = "hostile text"


@dataclass(frozen=True, slots=True)
class Probe:
    """One text, scored as the answer to one of the problems."""

    role: Role
    name: str  # the form of an answer, or what is special about the text
    problem: int
    text: str


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """The score of one probe: a number, or the reason why there is none."""

    probe: Probe
    reward: float | None
    error: str = ""
    seconds: float | None = None  # None: not a fair measurement, a process was being started
    failure: Failure | None = None  # where the error came from, if that is known

    @property
    def timed_out(self) -> bool:
        return is_timeout(self.error)

    def __str__(self) -> str:
        """One line of evidence: which text, under which problem, got what. An error may be hostile, or a page long."""
        error = self.error if len(self.error) <= _LONGEST_ERROR else f"{self.error[: _LONGEST_ERROR - 2]}.."
        got = f"{self.reward:g}" if self.reward is not None else escape(error)
        where = f"problem {self.probe.problem + 1}, {self.probe.role}, {self.probe.name}"
        return f"{where}: {quote(self.probe.text)} -> {got}"


Pairs = tuple[tuple[ProbeScore, ProbeScore], ...]


@dataclass(frozen=True, slots=True)
class RewardTrial:
    """All calls of one reward on the problems of one task. The checks read nothing else."""

    functions: tuple[str, ...]
    scores: tuple[ProbeScore, ...] = ()  # each probe, scored alone
    repeated: Pairs = ()  # the same call in the same process, later
    new_process: Pairs = ()  # the same calls in the same order in a new process
    reversed_batch: Pairs = ()  # the same as one batch, in reverse order
    parallel: Pairs = ()  # the same as one batch, with several processes
    groups: tuple[tuple[float | None, ...], ...] = ()  # rewards of the completions file, by prompt
    task: str = ""
    problems: int = 0
    rollouts_per_step: int = 1
    scored_at_once: int = 1
    deadline: float = 2.0  # seconds a call may take here
    training_deadline: float = 2.0  # and in training
    calls: int = 0
    seconds: float = 0.0
    stopped: str = ""  # why some probes were not scored; "" = all were

    @property
    def name(self) -> str:
        return f"{', '.join(self.functions)} on {self.task}"

    def of(self, *roles: Role) -> list[ProbeScore]:
        """The probes of these roles that have a reward; of all roles if none is named."""
        return [score for score in self.scores if score.reward is not None and (not roles or score.probe.role in roles)]


def is_timeout(error: str) -> bool:
    return "took longer than" in error

"""What the doctor looks at: batches, the curves of a run, scripts, what was seen of one, the calls of a reward; each
part may be absent."""

from __future__ import annotations

from dataclasses import dataclass

from assay.doctor.evidence.curves import Curves
from assay.doctor.evidence.reward import RewardTrial
from assay.programs.program import Program
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Batch

__all__ = ["Batch", "Curves", "Evidence", "RewardTrial"]


@dataclass(frozen=True)
class Evidence:
    """What is known of one input. `notes` are sentences about the evidence itself: a torn line, a damaged file."""

    batches: tuple[Batch, ...] = ()
    curves: Curves | None = None
    notes: tuple[str, ...] = ()
    programs: tuple[Program, ...] = ()
    run: WatchedRun | None = None  # of a script under `assay watch`
    reward: RewardTrial | None = None
    earlier: tuple[Batch, ...] = ()  # of the same run, looked at before: only checks of several batches see them

    @property
    def history(self) -> list[Batch]:
        """All batches of the run in the order of its updates."""
        batches = [*self.earlier, *self.batches]
        return sorted(batches, key=lambda batch: (batch.step or 0, batch.numbers.get("update", 0)))

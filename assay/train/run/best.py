"""Held-out scores -> the best step, its weights in RUN/best, and whether the run may stop early.

The score is the mean reward of the sampled answers. All evaluations of a run use the same problems and random numbers,
so their scores can be compared. All decisions are made from evaluations.jsonl: a resumed run decides the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.config import Config
from assay.record import read_evaluations
from assay.record.weights import BEST, clear_weights, step_of

SCORE = "reward_sampled"
Row = Mapping[str, Any]


class StoppedEarly(Exception):
    """The held-out score no longer improves. The message is a sentence; the run ends like a finished one."""


@dataclass(frozen=True, slots=True)
class BestPolicy:
    config: Config
    run: Path
    save: Callable[[], None]  # writes a checkpoint
    publish: Callable[[int], None]  # writes the policy as it is now, after this step, to RUN/best

    def resume(self, step: int, say: Callable[[str], None]) -> None:
        """Removes the best weights if they are of a step after `step`, which the resumed run will make again."""
        kept = step_of(self.run, BEST)
        if kept > step and (self.run / BEST).exists():
            say(f"{self.run / BEST} holds the weights after step {kept}, which the run makes again; it is removed")
            clear_weights(self.run, BEST, say)

    def look(self, step: int) -> None:
        """Keeps the weights if this step is the best so far. Call it between two steps. Raises StoppedEarly."""
        every, patience = self.config.evaluate.every, self.config.evaluate.patience
        if not every:
            return
        rows = [row for row in read_evaluations(self.run).rows if row["step"] <= step]
        best = best_row(rows)
        if best is None:
            return
        if best["step"] == step > 0 and self.config.checkpoint.best and not self._is_kept(step):
            self.save()  # first: a run must not resume from before its best weights
            self.publish(step)
        behind = evaluations_since_best(rows)
        if 0 < patience <= behind and step < self.config.run.steps:
            when = f"after step {best['step']}" if best["step"] else "before training"
            raise StoppedEarly(
                f"stopped early after step {step}: {behind} evaluations in a row were not better than the held-out "
                f"score {best[SCORE]:.4g} {when} (evaluate.patience = {patience}); to go on: "
                f"assay train --resume {shlex.quote(str(self.run))} --change evaluate.patience=0"
            )

    def _is_kept(self, step: int) -> bool:
        return (self.run / BEST).is_dir() and step_of(self.run, BEST) == step


def best_row(rows: Sequence[Row]) -> Row | None:
    """The first evaluation with the highest score; None without any score.

    >>> best_row([{"step": 0, "reward_sampled": 0.1}, {"step": 5, "reward_sampled": 0.4}])["step"]
    5
    """
    scored = [row for row in rows if row.get(SCORE) is not None]
    return max(scored, key=lambda row: row[SCORE], default=None)


def evaluations_since_best(rows: Sequence[Row]) -> int:
    """How many evaluations came after the best one; one without a score is not better either."""
    best = best_row(rows)
    return 0 if best is None else len(rows) - 1 - list(rows).index(best)

"""A script that trains with TRL: the adapter is attached by itself when the script calls train().

Meanwhile the recorder of calls is off: the adapter looks, and what it saw becomes part of the one report.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.adapters.attached import Attached
from assay.doctor.evidence import Curves
from assay.programs.run.observe.guard import shielded
from assay.programs.run.observe.observer import LEAST_ROLLOUTS, Enough, ScriptObserver
from assay.programs.run.watched import WatchedRun

MOST_BATCHES = 48  # that the report looks at


class TRLRuns:
    """Batches of every trainer that the script trains, and the curves of the last."""

    def __init__(
        self, run: WatchedRun, observer: ScriptObserver, folder: Path, broke: Callable[[Exception], None]
    ) -> None:
        self.run, self.observer, self.folder, self._broke = run, observer, folder, broke
        self.attached: list[Attached] = []
        self.seen_some: Callable[[], None] | None = None

    def watch(self, module: Any) -> None:
        """trl.trainer.grpo_trainer"""
        self.observer.patches.replace(module.GRPOTrainer, "train", self._around)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(trainer: Any, *args: Any, **others: Any) -> Any:
            if self.observer.recorder.off == 0:
                shielded(self._broke, self._attach, trainer)
            with self.observer.recorder.suspended():
                return original(trainer, *args, **others)

        return train

    def _attach(self, trainer: Any) -> None:
        from assay.adapters.trl import attach, attached_to

        attached = attached_to(trainer) or attach(
            trainer, directory=self.folder / f"trl-{len(self.attached)}", report=lambda line: None
        )
        if attached not in self.attached:
            self.attached.append(attached)
            attached.after_look = functools.partial(self._look, attached)

    def _look(self, attached: Attached) -> None:
        known = {id(batch) for batch in self.run.batches}
        self.run.batches += [batch for batch in attached.batches if id(batch) not in known]
        del self.run.batches[MOST_BATCHES:]
        steps = self.observer.steps
        if steps is not None and attached.steps_done() >= steps:
            raise Enough(0)
        if self.seen_some is not None and len({batch.step for batch in self.run.batches}) >= LEAST_ROLLOUTS:
            report, self.seen_some = self.seen_some, None
            report()

    @property
    def curves(self) -> Curves | None:
        return self.attached[-1].curves if self.attached else None

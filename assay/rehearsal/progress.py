"""How far the script got: backward passes, optimizer steps, rollout batches. Ends the run when enough was seen."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from assay.rehearsal.stage import EVENTS, Stage
from assay.watch.child import ScriptWatch
from assay.watch.imports import AfterImport

if TYPE_CHECKING:
    from assay.rehearsal.arguments import Given

LEAST_STEPS, LEAST_ROLLOUTS = 4, 3  # unless the user says how many steps
MOST_STEPS = 16  # of one optimizer, however few rollout batches they came from
MOST_BEFORE = 400  # steps before anything is sampled: a script may imitate answers first
PATIENCE = 20.0  # seconds that more rollout batches may take once LEAST_STEPS were made


class Progress:
    def __init__(self, stage: Stage, watch: ScriptWatch, steps: int | None, kept_at: Path) -> None:
        self.stage, self.watch, self.steps, self.kept_at = stage, watch, steps, kept_at
        self.ended = ""  # why: steps, time, failed, obstacle, finished
        self._process = os.getpid()
        self._steps: Counter[int] = Counter()  # by optimizer, since something was sampled
        self._before = 0  # optimizer steps until then
        self._rollouts = self._sampled = 0
        self._enough_at: float | None = None
        AfterImport({"torch": self._torch}).install()  # behind the watch: its own hook of a step is called first

    def _torch(self, torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self.watch.observer is not None:
            self.stage.not_recorded = self.watch.observer.recorder.suspended
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self.look()
            if "sampled" in self.stage.seconds:
                self.stage.reached("scored")  # at the latest: what was sampled is learned from
            self.stage.reached("backward")
            return original(*args, **kwargs)

        torch.autograd.backward = backward
        register_optimizer_step_post_hook(self._stepped)

    def look(self) -> None:
        """Whether something was sampled since the last look."""
        run = self.watch.run
        sampled = len(run.generations) + len(run.samplings)
        if sampled:
            self.stage.reached("sampled")
        if sampled > self._sampled:
            self._rollouts, self._sampled = self._rollouts + 1, sampled

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.stage.hidden or os.getpid() != self._process:
            return
        self.look()
        if "sampled" not in self.stage.seconds:
            self._before += 1
            if self._before < (self.steps or MOST_BEFORE):
                return
        self._steps[id(optimizer)] += 1
        most = max(self._steps.values())
        self.stage.reached("first step")
        if most >= 3:
            self.stage.reached("third step")
        self.keep()
        if self._is_enough(most):
            self.leave("steps")

    def _is_enough(self, most: int) -> bool:
        if self.steps is not None:
            return most >= self.steps
        if most < LEAST_STEPS:
            return False
        now = time.monotonic()
        self._enough_at = self._enough_at or now
        return self._rollouts >= LEAST_ROLLOUTS or most >= MOST_STEPS or now - self._enough_at > PATIENCE

    def end(self, why: str) -> None:
        self.look()
        self.ended = self.ended or why
        self.keep()

    def leave(self, why: str) -> None:
        """Ends the process at once: what a script does at its end, as saving a model, is not asked for."""
        self.end(why)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os._exit(0)  # run_script() has put the report in front of it

    def summary(self, given: Given | None = None) -> dict[str, Any]:
        """The part of a report that only a rehearsal has."""
        shown = self.watch.places.shown
        return {
            "entry": self.watch.settings["entry"],
            "ended": self.ended,
            "walls": self.watch.settings["walls"],
            "seconds": {event: self.stage.seconds[event] for event in EVENTS if event in self.stage.seconds},
            "steps": max(self._steps.values(), default=0),
            "steps_before_sampling": self._before,
            "arguments": [] if given is None else given.made,
            "replaced": [{"kind": made.kind, "what": made.what, "by": made.by} for made in self.stage.replacements],
            "obstacles": [
                {"what": found.what, "file": shown(found.file) if found.file else "", "line": found.line}
                for found in self.stage.obstacles
            ],
        }

    def keep(self) -> None:
        """For the parent, if this process is killed."""
        aside = self.kept_at.with_suffix(".part")
        aside.write_text(json.dumps(self.summary()), encoding="utf-8")
        os.replace(aside, self.kept_at)

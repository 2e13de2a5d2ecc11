"""The process in which the rehearsed script runs: python -m assay.rehearsal.child SETTINGS entry.py arguments

SETTINGS is JSON of what command.py knows: the folders, the limits, the form of the report. The process is put behind
walls, every stand-in is installed, and the script runs under observation as `assay watch` observes it. It ends when
enough optimizer steps were seen, when command.py signals that time is up, or when the script ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.rehearsal import sandbox
from assay.rehearsal.arguments import Given, supply_arguments
from assay.rehearsal.progress import Progress
from assay.rehearsal.stage import Obstacle, Stage
from assay.rehearsal.standins import install_all
from assay.watch.child import Rehearsed, ScriptWatch
from assay.watch.process import run_script

if TYPE_CHECKING:
    from assay.doctor.evidence import Curves
    from assay.programs.run.watched import WatchedRun

TIME_IS_UP = signal.SIGUSR2


class Rehearsal:
    """One script on its stage: the watch, how far it got, and the report of both."""

    def __init__(self, entry: Path, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.stage = Stage(script=entry, folder=Path(settings["copy"]), home=Path(settings["home"]))
        self.given = Given(settings["hints"])
        supply_arguments(self.stage, self.given)
        install_all(self.stage)
        self.stage.open()
        rehearsed = Rehearsed(
            settings["judged"], settings["folder"], (settings["copy"], settings["shown"]), self._report
        )
        self.watch = ScriptWatch(entry, {**settings, "steps": None}, rehearsed)
        self.progress = Progress(self.stage, self.watch, settings["steps"], Path(settings["progress"]))
        signal.signal(TIME_IS_UP, self._time_is_up)

    def _time_is_up(self, number: int, frame: Any) -> None:
        """In the main thread, between two instructions of the script: it does not go on. A report that is being written
        is finished."""
        if not self.progress.ended:
            self.progress.leave("time")

    def _report(self, run: WatchedRun, settings: Mapping[str, Any], curves: Curves | None) -> dict[str, Any]:
        from assay.rehearsal.report import report

        here = os.getcwd()
        os.chdir(settings["folder"])  # the user's files are shown as the user named them
        try:
            return report(run, settings, curves, self.progress.summary(self.given))
        finally:
            os.chdir(here)

    def ended(self, error: BaseException | None) -> None:
        from assay.rehearsal.crash import judge

        if self.progress.ended:  # by ourselves, in the middle
            error = None
        elif error is not None:
            is_of_script = judge(error, self.stage, self.watch.places)
            self.progress.end("failed" if is_of_script else "obstacle")
            error = error if is_of_script else None
        else:
            if self.settings["hindrance"]:
                self.stage.obstacles.append(Obstacle(self.settings["hindrance"]))
            self.progress.end("finished")
        self.watch.ended(error)


def main() -> int:
    settings = json.loads(sys.argv[1])
    entry = Path(sys.argv[2])
    settings["walls"] = _walls(settings)
    rehearsal = Rehearsal(entry, settings)
    if settings["package"] is not None:
        sys.path.insert(0, settings["path"][0])
    sys.path += settings["path"]  # at the end, so that they hide nothing
    rehearsal.stage.reached("started")
    rehearsal.progress.keep()
    return run_script(entry, sys.argv[3:], rehearsal.ended, settings["package"])


def _walls(settings: Mapping[str, Any]) -> list[str]:
    """What protects the user, in words."""
    walls = sandbox.own_namespaces(settings["temporary"]) or ["sockets that reach this machine only"]
    sandbox.end_with_parent()  # after it left the network: that forgets it
    sandbox.guard_sockets()
    sandbox.limit_resources(settings["memory"])
    if sandbox.write_only_below([settings["temporary"]]):
        walls.append("writes below its copy only")
    return walls


if __name__ == "__main__":
    sys.exit(main())

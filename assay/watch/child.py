"""The process in which the script runs: python -m assay.watch.child SETTINGS script.py arguments

SETTINGS is JSON: where the report is to be written, in which form, after how many optimizer steps to stop. The report
is shown from here, and at once: whatever ends this process or its parent later, the report is there.

Before the script nothing is imported but the standard library: what a script sets before it imports numpy or torch
must count. Whatever fails here is reported and never reaches the script.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.programs.run.observe.guard import sentence, shielded
from assay.watch.imports import AfterImport
from assay.watch.process import run_script

if TYPE_CHECKING:
    from assay.doctor.evidence import Curves
    from assay.programs.run.observe.places import Places
    from assay.programs.run.watched import ScriptFailure, WatchedRun
    from assay.watch.trl_runs import TRLRuns


@dataclass(frozen=True)
class Rehearsed:
    """A copy of the script runs; the report names the user's files."""

    judged: str  # the script as the user named it
    folder: str  # in which the user stands
    copied: tuple[str, str]  # folder of the copy, and that of the user's files as it is shown
    report: Callable[[WatchedRun, Mapping[str, Any], Curves | None], dict[str, Any]]


class ScriptWatch:
    """Holds the run; begins when torch is imported; writes the report when three rollout batches were seen, when the
    observation is over, and when the script fails."""

    def __init__(self, script: Path, settings: dict[str, Any], rehearsed: Rehearsed | None = None) -> None:
        self.script, self.folder = script, os.getcwd()
        self._whole = script.resolve()  # the script may go to another folder
        self.settings, self._rehearsed = settings, rehearsed
        self.observer: Any = None
        self.trl: TRLRuns | None = None
        self._written = self._is_over = False
        self._shown: list[Any] | None = None  # findings of the report that was shown last
        self._faults: list[str] = []
        self._imports = AfterImport(
            {
                "torch": lambda module: shielded(self._broke, self._torch, module),
                "trl.trainer.grpo_trainer": lambda module: shielded(self._broke, self._trl, module),
                "transformers.generation.utils": lambda module: shielded(self._broke, self._transformers, module),
            }
        )
        self._imports.install()
        os.register_at_fork(after_in_child=self._after_fork)

    @cached_property
    def run(self) -> WatchedRun:
        from assay.programs.run.watched import WatchedRun

        if self._rehearsed is not None:
            return WatchedRun(self._rehearsed.judged, self._rehearsed.folder)
        return WatchedRun(str(self.script), self.folder)

    @cached_property
    def places(self) -> Places:
        from assay.programs.run.observe.places import Places

        return Places(self.script, self._whole, None if self._rehearsed is None else self._rehearsed.copied)

    def _broke(self, error: Exception) -> None:
        self._faults.append(sentence(error))
        if self.observer is not None:
            self.observer.recorder.off += 1

    def _torch(self, module: Any) -> None:
        import assay.watch.report  # noqa: F401  # now: later it may cost a step
        from assay.programs.run.observe.observer import ScriptObserver

        self.observer = ScriptObserver(self.run, self.places, self.settings["steps"], self._enough)
        self.observer.seen_some = self._seen_some
        self.observer.start()

    def _transformers(self, module: Any) -> None:
        if self.observer is not None:
            self.observer.watch_generate(module)

    def _trl(self, module: Any) -> None:
        if self.observer is not None:
            from assay.watch.trl_runs import TRLRuns

            self.trl = TRLRuns(self.run, self.observer, Path(self.settings["result"]).parent, self._broke)
            self.trl.seen_some = self._seen_some
            self.trl.watch(module)

    def _after_fork(self) -> None:
        """A worker is not watched."""
        shielded(self._broke, self._off)

    def _off(self) -> None:
        self._imports.remove()
        if self.observer is not None:
            self.observer.stop()

    def _seen_some(self) -> None:
        """Three rollout batches: the report so far; more is observed, and what is computed now must not be kept."""
        shielded(self._broke, self.write)
        self.run.computed.clear()

    def _enough(self) -> None:
        self._is_over = True
        shielded(self._broke, self.write)

    def ended(self, error: BaseException | None) -> None:
        if self._is_over and self._written and not _is_failure(error):
            return
        shielded(self._broke, self._off)
        if _is_failure(error):
            self._shown = None  # how it ended is news
            shielded(self._broke, self._explain, error)
        elif isinstance(error, SystemExit) and error.code not in (None, 0) and self.observer is None:
            self.run.notes.append("the script ended by itself before it imported torch; its own words say why")
        if self.observer is not None:
            shielded(self._broke, self.observer.updates.settle)
        shielded(self._broke, self.write)
        if not self._written:
            shielded(self._broke, self._write_faults)

    def _explain(self, error: BaseException) -> None:
        self.run.failure = self._failure(error)
        self.run.computed.clear()  # how it ended is part of what the facts are made of

    def _failure(self, error: BaseException) -> ScriptFailure:
        from assay.programs.run.watched import ScriptFailure
        from assay.watch.failure import is_of_names

        place = None
        traceback = error.__traceback__
        while traceback is not None:
            if self.places.is_own(traceback.tb_frame.f_code.co_filename):
                where = (traceback.tb_frame.f_code, traceback.tb_lasti)
                place = self.places.place(where)
            traceback = traceback.tb_next
        raised = self.run.raised
        is_it = (
            raised is not None
            and place is not None
            and (raised.place.file, raised.place.line) == (place.file, place.line)
        )
        of_names = is_of_names(error, self.places)
        return ScriptFailure(type(error).__name__, str(error), place, raised if is_it else None, of_names)

    def write(self) -> None:
        from assay.watch.report import report

        self.run.notes += self._faults
        self._faults = []
        make = report if self._rehearsed is None else self._rehearsed.report
        self._put(make(self.run, self.settings, None if self.trl is None else self.trl.curves))
        self._written = True

    def _show(self, result: dict[str, Any]) -> bool:
        """To stderr or to the file of --out; False: it could not be, and the parent has to."""
        from assay.doctor.command import print_report
        from assay.machine import durable

        stream, out = sys.__stderr__, self.settings["out"]
        is_news, self._shown = result["findings"] != self._shown or self._shown is None, result["findings"]
        try:
            if out is not None:
                durable.replace_file(Path(out), f"{result['text']}\n".encode("utf-8", "backslashreplace"))
            if is_news and stream is not None:
                print_report(
                    result["text"] if out is None else f"{self.settings['shown_out']}: {result['counts']}", stream
                )
                stream.flush()
        except (OSError, ValueError):  # a full disk; a stream that the script has closed
            return False
        return stream is not None

    def _write_faults(self) -> None:
        lines = [f"assay watch: {fault}" for fault in self._faults]
        self._put({"text": "\n".join(lines), "counts": "no report", "code": 0, "findings": []})

    def _put(self, result: dict[str, Any]) -> None:
        """Before it is shown, so that a kill loses nothing, and again when it was."""
        self._keep(result | {"is_shown": False})
        if "out" in self.settings and self._show(result):
            self._keep(result | {"is_shown": True})

    def _keep(self, result: dict[str, Any]) -> None:
        path = Path(self.settings["result"])
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(result), encoding="utf-8")
        os.replace(aside, path)


def _is_failure(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt))


def main() -> int:
    settings = json.loads(sys.argv[1])
    script = Path(sys.argv[2])
    watch = ScriptWatch(script, settings)
    return run_script(script, sys.argv[3:], watch.ended)


if __name__ == "__main__":
    sys.exit(main())

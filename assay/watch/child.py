"""The process in which the script runs: python -m assay.watch.child SETTINGS script.py arguments

SETTINGS is JSON: where the report is to be written, in which form, after how many optimizer steps to stop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from assay.watch.imports import AfterImport
from assay.watch.places import Places
from assay.watch.process import run_script
from assay.watch.trace import Failure, Trace


class Watch:
    """Holds the trace; begins when torch is imported; writes the report when enough was seen, and at the end."""

    def __init__(self, script: Path, settings: dict[str, Any]) -> None:
        self.trace = Trace(str(script), os.getcwd())
        self.settings = settings
        self.places = Places(script)
        self.observer: Any = None
        self._written = False
        self._imports = AfterImport({"torch": self._torch, "transformers.generation.utils": self._transformers})
        self._imports.install()
        os.register_at_fork(after_in_child=self._off)

    def _torch(self, module: Any) -> None:
        from assay.watch.observer import Observer

        self.observer = Observer(self.trace, self.places, self.settings["steps"], self.write)
        self.observer.start()

    def _transformers(self, module: Any) -> None:
        if self.observer is not None:
            self.observer.watch_generate(module)

    def _off(self) -> None:
        self._imports.remove()
        if self.observer is not None:
            self.observer.stop()

    def ended(self, error: BaseException | None) -> None:
        if not self._written or _failed(error):
            self._off()
            if _failed(error):
                self.trace.failure = self._failure(error)
            if self.observer is not None:
                self.observer.reading.settle()
            self.write()

    def _failure(self, error: BaseException | None) -> Failure:
        place = None
        traceback = error.__traceback__ if error is not None else None
        while traceback is not None:
            if self.places.is_own(traceback.tb_frame.f_code.co_filename):
                where = (traceback.tb_frame.f_code, traceback.tb_lasti)
                place = self.places.place(where)
            traceback = traceback.tb_next
        raised = self.trace.raised
        is_it = (
            raised is not None
            and place is not None
            and (raised.place.file, raised.place.line) == (place.file, place.line)
        )
        return Failure(type(error).__name__, str(error), place, raised if is_it else None)

    def write(self) -> None:
        from assay.watch.report import report

        self._written = True
        result = report(self.trace, self.settings)
        path = Path(self.settings["result"])
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(result), encoding="utf-8")
        os.replace(aside, path)


def _failed(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt))


def main() -> int:
    settings = json.loads(sys.argv[1])
    script = Path(sys.argv[2])
    watch = Watch(script, settings)
    return run_script(script, sys.argv[3:], watch.ended)


if __name__ == "__main__":
    sys.exit(main())

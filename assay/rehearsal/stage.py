"""The stage: what a rehearsal may use, and what it has replaced.

A stand-in is one file in `standins/` with a function `install(stage)`. It asks `stage.when_imported` for the modules
that it changes, so that nothing is imported before the script imports it, and says with `stage.replaced` what it stood
in for: the report says so, and a finding that depends on a replaced thing is not reported. What it computes for itself,
as the weights of a made checkpoint, it computes inside `stage.unseen()`: none of that is the script's. It calls
`stage.reached` where only it knows that the script got so far, and `stage.obstacle` where it cannot stand in.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Literal

from assay.programs.run.observe.guard import shielded
from assay.watch.imports import AfterImport

# what a finding can depend on: rows of data; values of rewards; sizes of model, batch and answers; weights and their
# scale; arithmetic of the device; the engine that samples; several processes; files; a service without effect
Kind = Literal["data", "rewards", "sizes", "weights", "device", "engine", "processes", "files", "service"]

# how far a script got, in the order in which a training loop gets there
Event = Literal["started", "sampled", "scored", "backward", "first step", "third step"]
EVENTS: tuple[Event, ...] = ("started", "sampled", "scored", "backward", "first step", "third step")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class Replacement:
    kind: Kind
    what: str  # as the script asked for it: "Qwen/Qwen2.5-7B"
    by: str  # in words: "a random qwen2 of 0.2 M parameters"


@dataclass(frozen=True)
class Obstacle:
    """What could not be stood in for, and the line of the script that wanted it."""

    what: str
    file: str = ""
    line: int = 0


@dataclass
class Stage:
    script: Path
    folder: Path  # the working copy in which the script runs
    home: Path  # temporary: caches and made checkpoints
    most_tokens: int = 24  # a completion is cut there
    replacements: list[Replacement] = field(default_factory=list)
    obstacles: list[Obstacle] = field(default_factory=list)
    seconds: dict[Event, float] = field(default_factory=dict)  # until each event
    began: float = field(default_factory=time.monotonic)
    waiting: dict[str, list[Callable[[ModuleType], None]]] = field(default_factory=dict)  # by module name
    is_open: bool = False  # the script may import from now on
    hiding: threading.local = field(default_factory=threading.local)  # how many `unseen` are under way in a thread
    not_recorded: Callable[[], AbstractContextManager[None]] = nullcontext  # the observer's

    def when_imported(self, module: str, install: Callable[[ModuleType], None]) -> None:
        """Calls `install` right after the module was imported for the first time; at once if it was before."""
        self.waiting.setdefault(module, []).append(install)
        if self.is_open:
            AfterImport({module: partial(self._install, install)}).install()

    def open(self) -> None:
        """From now on, what waits for a module is called."""
        self.is_open = True
        AfterImport(dict.fromkeys(self.waiting, self._install_all)).install()

    def _install_all(self, module: ModuleType) -> None:
        for install in self.waiting[module.__name__]:
            self._install(install, module)

    def _install(self, install: Callable[[ModuleType], None], module: ModuleType) -> None:
        shielded(lambda error: self._broke(install, error), install, module)

    def _broke(self, install: Callable[[ModuleType], None], error: Exception) -> None:
        """A fault of ours: the script goes on without this stand-in."""
        name = f"{install.__module__.rpartition('.')[2]}.{getattr(install, '__name__', '')}"
        self.obstacles.append(Obstacle(f"the stand-in {name} failed: {type(error).__name__}: {error}"))

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What is computed inside is a stand-in's: it is not recorded, and its optimizer steps do not count."""
        self.hiding.count = self.hidden + 1
        is_recorded = threading.current_thread() is threading.main_thread()
        try:
            with self.not_recorded() if is_recorded else nullcontext():
                yield
        finally:
            self.hiding.count -= 1

    @property
    def hidden(self) -> int:
        return int(getattr(self.hiding, "count", 0))

    def reached(self, event: Event) -> None:
        if not self.hidden:
            self.seconds.setdefault(event, round(time.monotonic() - self.began, 2))

    def obstacle(self, what: str, frame: FrameType | None = None) -> None:
        """The line is the script's innermost one that is under way."""
        frame = sys._getframe(1) if frame is None else frame
        while frame is not None and not self.is_own(frame.f_code.co_filename):
            frame = frame.f_back
        found = Obstacle(what) if frame is None else Obstacle(what, frame.f_code.co_filename, frame.f_lineno)
        if found not in self.obstacles:
            self.obstacles.append(found)

    def replaced(self, kind: Kind, what: object, by: str) -> None:
        one = Replacement(kind, str(what), by)
        if one not in self.replacements:
            self.replacements.append(one)

    def is_own(self, file: str) -> bool:
        """Whether a source file belongs to the script's project: not to Python, a package, or Assay."""
        return not file.startswith(("<", _PACKAGE, *_INSTALLED))

    def is_asked_by_script(self, frame: FrameType | None = None) -> bool:
        """Whether the first frame outside of Assay and importlib is the script's own: libraries keep what they had."""
        frame = sys._getframe(1) if frame is None else frame
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith((_PACKAGE, "<frozen importlib")):
                return self.is_own(file)
            frame = frame.f_back
        return False

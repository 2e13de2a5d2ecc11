"""Whether an exception shows that the script names what does not exist: whatever values it ran with, it would fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.programs.run.observe.places import Places

_OF_ARGUMENTS = re.compile(r"([\w.<>]+)\(\) (missing|takes|got an unexpected|got multiple)")


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Each frame of the traceback with its line, from the outermost on."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def is_of_names(error: BaseException, places: Places) -> bool:
    """A name that is not defined, an attribute that the script's own class lacks, arguments that its own function does
    not take: raised by a line of the script."""
    frames = [frame for frame, _ in frames_of(error)]
    if not frames or not places.is_own(frames[-1].f_code.co_filename):
        return False
    if isinstance(error, AttributeError):
        owner = getattr(error, "obj", None)
        return owner is not None and _is_of_project(type(owner).__module__, places)
    if isinstance(error, TypeError):
        called = _OF_ARGUMENTS.match(str(error))
        return called is not None and any(_defines(frame, called.group(1), places) for frame in frames)
    return isinstance(error, NameError)


def _is_of_project(module: str, places: Places) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and places.is_own(file)


def _defines(frame: FrameType, name: str, places: Places) -> bool:
    """Whether the frame knows a function, or a class with a method, of that qualified name that is the project's."""
    if not places.is_own(frame.f_code.co_filename):
        return False
    first, _, method = name.partition(".")
    known = frame.f_locals.get(first, frame.f_globals.get(first))
    function = getattr(known, method.rpartition(".")[2], None) if method else known
    code = getattr(function, "__code__", None)
    return code is not None and places.is_own(code.co_filename)

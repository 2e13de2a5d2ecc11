"""Why the script ended with an exception: by itself, or because something that a rehearsal needs is not there.

Only the first is the script's. What a stand-in raised, what happened to a value of one, a module or a file that is
missing, a limit that was reached, another version of a library: each is an obstacle, and the report names it with the
line.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from types import FrameType
from typing import TYPE_CHECKING

from assay.rehearsal.stage import Obstacle, Stage
from assay.watch.failure import frames_of, is_of_names

if TYPE_CHECKING:
    from assay.programs.run.observe.places import Places

_STANDINS = "assay.rehearsal"


def judge(error: BaseException, stage: Stage, places: Places) -> bool:
    """Whether the failure is the script's own. If it is not, it is now among the stage's obstacles."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return False
    frames = list(frames_of(error))
    own = [(frame, line) for frame, line in frames if places.is_own(frame.f_code.co_filename)]
    if _is_of_script(error, frames, places):
        return True
    file, line = (own[-1][0].f_code.co_filename, own[-1][1]) if own else ("", 0)
    stage.obstacles.append(Obstacle(_sentence(error, frames), file, line))
    return False


def _is_of_script(error: BaseException, frames: list[tuple[FrameType, int]], places: Places) -> bool:
    """Failures that depend on no value: a name, an attribute or an argument that does not exist; a loss without a
    gradient, which is the data flow of the script whatever flows."""
    if "does not require grad" in str(error):
        return True
    if not is_of_names(error, places) or _touches_standin(error, *frames[-1]):
        return False
    return not (isinstance(error, NameError) and _has_star_of_standin(frames[-1][0]))


def _sentence(error: BaseException, frames: list[tuple[FrameType, int]]) -> str:
    if isinstance(error, SystemExit):
        return f"the script ended itself with {error.code!r}"
    if isinstance(error, KeyboardInterrupt):
        return "the run was interrupted"
    sentence = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"the memory limit was reached: {sentence}"
    if frames and _touches_standin(error, *frames[-1]):
        return f"a value of a stand-in was used as it cannot be: {sentence}"
    return sentence


def _touches_standin(error: BaseException, frame: FrameType, line: int) -> bool:
    """Whether a value that the failing line names, or the object that lacks an attribute, is of a stand-in."""
    if _is_standin(getattr(error, "obj", None)):
        return True
    named = re.findall(r"\w+", linecache.getline(frame.f_code.co_filename, line))
    return any(_is_standin(frame.f_locals.get(name, frame.f_globals.get(name))) for name in named)


def _is_standin(value: object) -> bool:
    kinds = (type(value), value) if isinstance(value, type) else (type(value),)
    return any(base.__module__.startswith(_STANDINS) for kind in kinds for base in kind.__mro__)


def _has_star_of_standin(frame: FrameType) -> bool:
    """`from absent import *` would have brought the name."""
    text = "".join(linecache.getlines(frame.f_code.co_filename))
    stars = [
        node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == "*" for alias in node.names)
    ]
    return any(_is_standin(sys.modules.get(name)) for name in stars)

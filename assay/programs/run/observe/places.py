"""Where in the script an operation stands: the innermost frame of the script's own files, and those that called it."""

from __future__ import annotations

import linecache
import os
import re
import site
import sysconfig
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

from assay.programs.graph import Context
from assay.verdict import Place

_LONGEST = 100  # letters of an expression that are kept
_ASSIGNED = re.compile(r"\s*([A-Za-z_][\w.]*)\s*=(?!=)\s*")
_ASSAY = str(Path(__file__).resolve().parents[3])

NOWHERE = Place("", 0)


class Places:
    """Frames --> Place and Context. Everything is kept by code and instruction: a loop asks for the same again."""

    def __init__(self, script: Path, whole: Path, copied: tuple[str, str] | None = None) -> None:
        """`whole` is the script's path in full; `script` is how it was given. `copied`: the folder in which a copy of
        the script's project runs, and the folder that is shown instead of it."""
        self.root, self._shown_root = str(whole.parent), os.path.dirname(script)
        self._shown = {str(whole): str(script)}
        if copied is not None:
            self.root, self._shown_root = os.path.realpath(copied[0]), copied[1]
            self._shown = {}
        paths = sysconfig.get_paths()
        libraries = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], _ASSAY}
        libraries |= {*site.getsitepackages(), site.getusersitepackages()}
        # a script may lie below a library's folder, as an example of it; never the other way round
        self._libraries = tuple(
            f"{os.path.realpath(folder)}{os.sep}" for folder in libraries if not self._holds_script(folder)
        )
        self._own: dict[str, bool] = {}
        self._places: dict[tuple[CodeType, int], tuple[Place, str]] = {}
        self._heres: dict[tuple[object, ...], tuple[Place, str, Context]] = {}
        self._kept: list[CodeType] = []  # an id is only good as long as its code lives

    def _holds_script(self, folder: str) -> bool:
        return f"{self.root}{os.sep}".startswith(f"{os.path.realpath(folder)}{os.sep}")

    def is_own(self, file: str) -> bool:
        known = self._own.get(file)
        if known is None:
            path = os.path.realpath(file)
            below_root = path.startswith(f"{self.root}{os.sep}")
            installed = f"{os.sep}site-packages{os.sep}" in path[len(self.root) if below_root else 0 :]
            known = self._own[file] = (
                not file.startswith("<") and not installed and (below_root or not path.startswith(self._libraries))
            )
        return known

    def here(self, frame: FrameType | None, *, no_grad: bool, autocast: bool) -> tuple[Place, str, Context]:
        """(place, the name that the value is bound to there or "", context)."""
        own = self._own
        key: list[object] = [no_grad, autocast]
        stack = []
        while frame is not None:
            code = frame.f_code
            is_own = own.get(code.co_filename)
            if is_own is None:
                is_own = self.is_own(code.co_filename)
            if is_own:
                instruction = frame.f_lasti
                stack.append((code, instruction))
                key += (id(code), instruction)  # code hashes by its contents, which takes long
            frame = frame.f_back
        known = self._heres.get(tuple(key))
        if known is None:
            known = self._heres[tuple(key)] = self._here(stack, no_grad=no_grad, autocast=autocast)
            self._kept += [code for code, _ in stack]
        return known

    def _here(self, stack: list[tuple[CodeType, int]], *, no_grad: bool, autocast: bool) -> tuple[Place, str, Context]:
        place, name = self._place(stack[0]) if stack else (NOWHERE, "")
        context = Context(
            no_grad=no_grad,
            autocast=autocast,
            calls=tuple(self._place(call)[0] for call in stack[1:]),
            functions=tuple(code.co_name for code, _ in stack if code.co_name != "<module>"),
        )
        return place, name, context

    def place(self, where: tuple[CodeType, int]) -> Place:
        return self._place(where)[0]

    def _place(self, where: tuple[CodeType, int]) -> tuple[Place, str]:
        known = self._places.get(where)
        if known is None:
            known = self._places[where] = self._read(*where)
        return known

    def _read(self, code: CodeType, instruction: int) -> tuple[Place, str]:
        positions = next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))
        line, end_line, column, end_column = positions
        file = self.shown(code.co_filename)
        if line is None:
            return Place(file, code.co_firstlineno), ""
        source = linecache.getlines(code.co_filename)
        if line > len(source) or end_line is None or column is None or end_column is None:
            text = source[line - 1].strip() if line <= len(source) else ""
            return Place(file, line, text=text[:_LONGEST]), ""
        return _expression(file, source, line, end_line, column, end_column)

    def shown(self, file: str) -> str:
        """A file as the script's own path was given: relative to it where it can be."""
        path = os.path.realpath(file)
        if path not in self._shown:
            below = path.startswith(f"{self.root}{os.sep}")
            self._shown[path] = os.path.join(self._shown_root, os.path.relpath(path, self.root)) if below else file
        return self._shown[path]


def _expression(
    file: str, source: list[str], line: int, end_line: int, column: int, end_column: int
) -> tuple[Place, str]:
    lines = [text.rstrip("\n").encode() for text in source[line - 1 : end_line]]  # columns count bytes
    before, behind = lines[0][:column].decode(errors="replace"), lines[-1][end_column:].decode(errors="replace")
    lines[-1] = lines[-1][:end_column]
    end = len(lines[-1].decode(errors="replace"))  # editors count characters
    lines[0] = lines[0][column:]
    text = " ".join(part.decode(errors="replace").strip() for part in lines)
    bound = _ASSIGNED.fullmatch(before)
    name = bound.group(1) if bound and not behind.split("#")[0].strip() else ""
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]}.."
    return Place(file, line, len(before), end_line, end, short), name

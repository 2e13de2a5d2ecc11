"""Modules that are not installed: some have a stand-in (`provide`); any other that the script itself imports is inert.

Where the script catches the ImportError itself, it has an answer of its own and gets the error. An inert value can be
called, entered, iterated (as nothing) and subclassed; `culprit` says whether an exception comes from one.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from assay.rehearsal.stage import Stage

Maker = Callable[[ModuleType], None]

_ERRORS = ("Error", "Exception", "Warning", "Exit", "Timeout")
_CATCH = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_ROOTS = (".git", "pyproject.toml", "setup.py", "requirements.txt", "README.md")
_PACKAGE = str(Path(__file__).resolve().parents[2])
_makers: dict[str, Maker] = {}
_even_if_caught: set[str] = set()
_said: list[Callable[[str], None]] = []


def provide(name: str, make: Maker, *, even_if_caught: bool = True) -> None:
    """A stand-in for a module that may be absent: `make` fills it. `even_if_caught`: in a `try` of the script too."""
    _makers[name] = make
    if even_if_caught:
        _even_if_caught.add(name.split(".")[0])


def install(stage: Stage) -> None:
    _said[:] = [lambda name: stage.replaced("data", name, "nothing, as its module is not installed")]
    sys.meta_path.append(_Finder(stage))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last: the module is not installed."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._is_busy = False

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.split(".")[0]
        frame = _importer()
        if top != name:
            is_asked = name in _makers and frame is not None and self.stage.is_own(frame.f_code.co_filename)
            is_ours = is_asked or isinstance(sys.modules.get(top), InertModule)
            return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_ours else None
        if frame is None or not self.stage.is_own(frame.f_code.co_filename) or self._is_busy:
            return None
        found = self._in_project(name)
        if found is not None:
            return found
        if is_caught(frame.f_code.co_filename, frame.f_lineno) and top not in _even_if_caught:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _in_project(self, name: str) -> importlib.machinery.ModuleSpec | None:
        """A module of the script's project that lies in a folder above it, or in `src` there."""
        folder = self.stage.script.resolve().parent
        for _ in range(5):
            for place in (folder, folder / "src"):
                if (place / f"{name}.py").is_file() or (place / name).is_dir():
                    sys.path.append(str(place))
                    self._is_busy = True
                    try:
                        return importlib.util.find_spec(name)
                    finally:
                        self._is_busy = False
            if any((folder / mark).exists() for mark in _ROOTS) or folder.parent == folder:
                return None
            folder = folder.parent
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        parent, _, name = spec.name.rpartition(".")
        made = vars(sys.modules[parent]).get(name) if parent in sys.modules else None
        return made if isinstance(made, ModuleType) else InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        make = _makers.get(module.__name__)
        if make is not None:
            make(module)
        if "." not in module.__name__:
            by = "a small stand-in" if make is not None else "an inert module"
            self.stage.replaced("service", f"the module {module.__name__}", by)


def _importer() -> FrameType | None:
    """The frame whose line imports."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) and "importlib" not in file:
            return frame
        frame = frame.f_back
    return None


@functools.cache
def _tries(file: str) -> list[tuple[int, int]]:
    """The lines of a file that stand in a `try` that catches an ImportError."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            types = [handler.type for handler in node.handlers]
            if any(kind is None or _CATCH & {part.id for part in _names(kind)} for kind in types):
                found.append((node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno))
    return found


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Name))


def is_caught(file: str, line: int) -> bool:
    return any(first <= line <= last for first, last in _tries(file))


class _InertType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _attribute(f"{cls.__name__}.{name}", name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class Inert(metaclass=_InertType):
    """A value of a module that is not installed: as a number it is 0, as a text or a collection it is empty."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        vars(self).setdefault("_inert", type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _attribute(f"{self._path()}.{name}", name)

    def _path(self) -> str:
        return str(vars(self).get("_inert", type(self).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # a decorator
        return inert(f"{self._path()}()")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def __await__(self) -> Any:
        yield from ()
        return self

    def __class_getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(self) -> Iterator[Any]:
        _used(self)
        return iter([inert(f"{self._path()}[{number}]") for number in range(_unpacked(sys._getframe(1)))])

    def __len__(self) -> int:
        _used(self)
        return 0

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        return inert(f"{self._path()}[]")

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __contains__(self, key: Any) -> bool:
        return False

    def __float__(self) -> float:
        _used(self)
        return 0.0

    def __int__(self) -> int:
        _used(self)
        return 0

    __index__ = __int__

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (str, list, tuple)):
            _used(self)
            return other
        return float(self) + other

    def __sub__(self, other: Any) -> Any:
        return float(self) - other

    def __rsub__(self, other: Any) -> Any:
        return other - float(self)

    def __mul__(self, other: Any) -> Any:
        return float(self) * other

    def __truediv__(self, other: Any) -> Any:
        return float(self) / other

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> bool:
        return bool(float(self) < other)

    def __le__(self, other: Any) -> bool:
        return bool(float(self) <= other)

    def __gt__(self, other: Any) -> bool:
        return bool(float(self) > other)

    def __ge__(self, other: Any) -> bool:
        return bool(float(self) >= other)

    def __fspath__(self) -> str:
        return "inert"

    def __repr__(self) -> str:
        return f"<{self._path()}, which is not installed>"


def _used(value: Inert) -> None:
    for say in _said:
        say(value._path())


def _unpacked(frame: FrameType) -> int:
    """How many values the statement under way takes apart: 3 in `a, b, c = value`, 2 in `a, *rest, b = value`."""
    code, place = frame.f_code.co_code, frame.f_lasti
    kind, count = dis.opname[code[place]], code[place + 1]
    if kind == "UNPACK_EX":  # the upper byte is in the instruction before
        after = code[place - 1] if dis.opname[code[place - 2]] == "EXTENDED_ARG" else 0
        return count + after
    return count if kind == "UNPACK_SEQUENCE" else 0


def inert(path: str) -> Inert:
    made = Inert()
    vars(made)["_inert"] = path
    return made


def _attribute(path: str, name: str) -> Any:
    if name.endswith(_ERRORS) and name[0].isupper():
        return type(name, (Exception,), {})
    if name[:1].isupper() and not name.isupper():
        return _InertType(name, (Inert,), {"_inert_class": path})
    return inert(path)


class InertModule(ModuleType):
    """A module that is not installed: whatever is asked of it is inert."""

    __version__ = "0.0.0"
    __file__ = None

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _attribute(f"{self.__name__}.{name}", name)
        setattr(self, name, value)
        return value


def culprit(error: BaseException) -> str | None:
    """Which inert value an exception comes from: one that the failing line of the innermost frames uses."""
    frames = []
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    for frame, line in reversed(frames):
        for value in _values(frame, line):
            path = _inert_in(value)
            if path:
                return path
    return None


def _values(frame: FrameType, line: int) -> Iterator[Any]:
    """What the names of a line stand for."""
    for instruction in dis.get_instructions(frame.f_code):
        positions = instruction.positions
        if positions is None or positions.lineno is None or positions.end_lineno is None:
            continue
        if positions.lineno <= line <= positions.end_lineno and instruction.opname.startswith("LOAD_"):
            name = instruction.argval
            for scope in (frame.f_locals, frame.f_globals):
                if isinstance(name, str) and name in scope:
                    yield scope[name]
                    break


def _inert_in(value: Any, depth: int = 2) -> str | None:
    if isinstance(value, Inert):
        return value._path()
    if isinstance(value, type) and issubclass(value, Inert):
        return str(vars(value).get("_inert_class", value.__name__))
    if isinstance(value, InertModule):
        return value.__name__ if value.__name__ not in _makers else None
    if depth:
        inside: list[Any] = []
        if isinstance(value, (list, tuple, set)):
            inside = list(value)[:8]
        elif isinstance(value, dict):
            inside = list(value.values())[:32]
        elif type(value).__module__ == "__main__":
            inside = list(getattr(value, "__dict__", {}).values())[:32]
        for part in inside:
            path = _inert_in(part, depth - 1)
            if path:
                return path
    return None

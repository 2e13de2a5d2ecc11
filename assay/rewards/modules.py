"""Reward functions by name: "file.py:function", or "assay.module:function" for those of this package -> the function.

A file becomes a module of a name that no other module has. It stands in sys.modules while it is run, which dataclasses
and pickle need. Its directory is the last place where imports are looked for: modules beside it can be imported, and
none of them takes the place of the standard library or of an installed package.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType


def load_functions(specs: Sequence[str]) -> Iterator[Callable[..., object]]:
    """The functions in this order. A file is run once, however many functions are taken from it."""
    modules: dict[str, ModuleType] = {}
    for spec in specs:
        place, _, name = spec.rpartition(":")
        is_file = place.endswith(".py")
        if not is_file and not place.startswith("assay."):
            raise ImportError(f"{place} is not a Python file")
        if place not in modules:
            modules[place] = _run_file(place) if is_file else importlib.import_module(place)
        function = getattr(modules[place], name, None)
        if not callable(function):
            raise ImportError(f"{place} has no function {name!r}")
        yield function


def files_of(specs: Sequence[str]) -> list[str]:
    """The files among the places of these functions, each once."""
    places = (spec.rpartition(":")[0] for spec in specs)
    return list(dict.fromkeys(str(Path(place).resolve()) for place in places if place.endswith(".py")))


def module_name(file: Path) -> str:
    """The same for the same file in every process, and no name that anything else has.

    >>> module_name(Path("/nonexistent/my-reward.py"))
    'reward_my_reward_729315d1'
    """
    whole = file.resolve()
    digest = hashlib.sha256(str(whole).encode("utf-8", "surrogateescape")).hexdigest()
    return f"reward_{re.sub('[^0-9A-Za-z_]', '_', whole.stem)}_{digest[:8]}"


class _AsItIsNow(importlib.machinery.SourceFileLoader):
    """Reads the file itself: bytecode of a file that was changed within the same second would be taken for its own."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


class RewardFinder:
    """Finds reward files by their module names, in the processes that a reward starts with multiprocessing."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = {module_name(Path(file)): file for file in files}

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else _spec(fullname, file)


def _spec(name: str, file: str) -> importlib.machinery.ModuleSpec | None:
    return importlib.util.spec_from_file_location(name, file, loader=_AsItIsNow(name, file))


def _run_file(path: str) -> ModuleType:
    name = module_name(Path(path))
    spec = _spec(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    directory = str(Path(path).resolve().parent)
    if directory not in sys.path:
        sys.path.append(directory)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

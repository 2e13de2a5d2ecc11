"""What is done right after a module was imported for the first time: a script that never imports torch pays nothing."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

After = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: it lets the other finders search, and calls `after` when the module has run."""

    def __init__(self, after: Mapping[str, After]) -> None:
        self._after = dict(after)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        after = self._after.pop(fullname, None)  # two of us would search through each other for ever
        if after is None:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        self._after[fullname] = after  # a search may be all: importlib.util.find_spec imports nothing
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Then(spec.loader, self._first)
        return spec

    def _first(self, module: ModuleType) -> None:
        after = self._after.pop(module.__name__, None)
        if after is not None:
            after(module)

    def install(self) -> None:
        for name in [name for name in self._after if name in sys.modules]:
            self._after.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Then(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, after: After) -> None:
        self._loader, self._then = loader, after

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)

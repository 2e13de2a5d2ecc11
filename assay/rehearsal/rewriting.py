"""Small changes to the script's own code while it is compiled. Lines and columns stay those of its text."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
from collections.abc import Callable
from types import CodeType
from typing import Any

from assay.rehearsal.stage import Stage

Change = Callable[[ast.Module], ast.Module]
_changes: list[Change] = []


def rewrite(stage: Stage, change: Change) -> None:
    """Applies `change` to each file of the script's project from now on."""
    _changes.append(change)
    if len(_changes) > 1:
        return
    loader: Any = importlib.machinery.SourceFileLoader
    original = loader.source_to_code

    @functools.wraps(original)
    def source_to_code(self: Any, data: Any, path: Any, **settings: Any) -> CodeType:
        if not isinstance(data, (bytes, str)) or not stage.is_own(str(path)):
            return original(self, data, path, **settings)  # type: ignore[no-any-return]
        tree = ast.parse(data, str(path))
        for each in _changes:
            tree = each(tree)
        return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)

    loader.source_to_code = source_to_code

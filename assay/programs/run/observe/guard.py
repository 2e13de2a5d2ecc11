"""The line between our faults and somebody's script: what we do beside it may fail, and the script goes on.

Beside a script every Exception is held back; beside a trainer (examine/guard.py) only FAULTS. SystemExit and
KeyboardInterrupt are the script's, and pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def shielded(report: Callable[[Exception], None], what: Callable[..., Any], *details: Any) -> Any:
    """what(*details); None if it raised; `report` is then called with the error."""
    try:
        return what(*details)
    except Exception as error:
        report(error)
        return None


def sentence(error: Exception) -> str:
    return f"observation ended early, by a fault of assay: {type(error).__name__}: {error}"

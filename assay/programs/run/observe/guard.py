"""The line between our faults and somebody's script: what we do beside it may fail, and the script goes on.

Only errors are held back. SystemExit and KeyboardInterrupt are the script's, and pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(told: Callable[[Exception], None], what: Callable[..., Any], *details: Any) -> Any:
    """what(*details); None if it raised, and `told` then knows what."""
    try:
        return what(*details)
    except Exception as error:
        told(error)
        return None


def sentence(error: Exception) -> str:
    return f"observation ended early, by a fault of assay: {type(error).__name__}: {error}"

"""Room for programs that are nested deeply: what walks their trees calls itself once per level."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_DEEP = 20_000  # Python's own frames: a program calls its functions within ours


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raises Python's limit within the block."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)

"""What an exotic model, a full machine or a bug of ours may raise. Signals and requests to stop are not among these."""

from __future__ import annotations

FAULTS = (
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError, MemoryError,
    NameError, OSError, RuntimeError, StopIteration, SystemError, TypeError, ValueError,
)  # fmt: skip

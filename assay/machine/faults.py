"""The one tuple of expected faults, for places where a fault must not end what is around it."""

from __future__ import annotations

from safetensors import SafetensorError

# what an exotic model, another version of a library, a full machine or a bug of ours may raise; signals and stops of a
# run are none of these
FAULTS = (
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError, MemoryError,
    NameError, OSError, RuntimeError, SafetensorError, StopIteration, SystemError, TypeError, ValueError,
)  # fmt: skip

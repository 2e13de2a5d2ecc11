"""What the libraries raise over a malformed model, and how it becomes one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError

from assay.config import ConfigError
from assay.machine.faults import FAULTS

# transformers reads a value of the wrong type as far as it gets, so that it may fail in any of these ways
LIBRARY_FAULTS: tuple[type[BaseException], ...] = (*FAULTS, SyntaxError, StrictDataclassError)
LONGEST = 300  # characters of a library's message that are quoted
_NO_MEMORY = ("can't allocate memory", "out of memory", "cannot allocate memory", "not enough memory")


def is_fault(error: BaseException) -> bool:
    """tokenizers raises plain `Exception`s, and what its Rust code did not expect as a PanicException."""
    return isinstance(error, LIBRARY_FAULTS) or type(error) is Exception or type(error).__name__ == "PanicException"


def is_memory(error: BaseException) -> bool:
    """Every library has words of its own for it."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)


def reason(error: BaseException) -> str:
    """The error in a part of a sentence.

    >>> reason(TypeError("'<' not supported\\n  between them"))
    "TypeError: '<' not supported between them"
    >>> reason(MemoryError())
    'there is not enough memory for it; free some, or take a smaller model'
    """
    text = " ".join(str(error).split())
    if is_memory(error):
        return "there is not enough memory for it; free some, or take a smaller model"
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    name = "" if type(error) is Exception else f"{type(error).__name__}: "
    return f"{name}{text}"


@contextmanager
def translate_faults(
    sentence: Callable[[BaseException], str], raises: type[ValueError] = ConfigError
) -> Iterator[None]:
    """Put it around calls of foreign libraries alone: a fault of theirs is raised again, as `sentence(fault)`."""
    try:
        yield
    except (ConfigError, raises):
        raise
    except BaseException as error:
        if is_fault(error):
            raise raises(sentence(error)) from error
        raise

"""The example rows, and the operations of a script on them by numpy: a comparison, a running count, a slice.

One row ends in the middle, one is cut off, one ends at once, one ends in its last place. Only operations that masks are
made of are here. Any other is Unclear: nothing is concluded from it.
"""

# ruff: noqa: A006
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Number = Any  # an array, a number, a list or a tuple of them
LARGEST_EXAMPLE = 10_000  # elements of an example
PROMPT, COMPLETION = 4, 6  # tokens; the widths 10, 9 and 6 distinguish a whole sequence, a shifted one and a completion
END, PAD, WORD = 1001, 1000, 1005
PROMPT_TOKEN = WORD + 7  # a token of a prompt
ROWS = 4
LENGTHS = (3, 6, 1, 6)  # with the end token
_STARTS = (1, 0, 2, 0)  # padding before each prompt


class Unclear(Exception):
    """The text does not say what this holds."""


def _dim(settings: dict[str, Any]) -> int | None:
    dim = settings.get("dim")
    if dim is None or isinstance(dim, int):
        return dim
    raise Unclear


def _reduce(how: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(input: Number, **settings: Any) -> Number:
        keep = bool(settings.get("keepdim", False))
        return how(np.asarray(input), axis=_dim(settings), keepdims=keep)

    return reduce


def _extreme(how: Callable[..., Any], where: Callable[..., Any]) -> Callable[..., Any]:
    """max with a dimension gives values and indices."""

    def extreme(input: Number, **settings: Any) -> Number:
        array, dim = np.asarray(input), _dim(settings)
        keep = bool(settings.get("keepdim", False))
        if dim is None:
            return how(array)
        return how(array, axis=dim, keepdims=keep), where(array, axis=dim, keepdims=keep)

    return extreme


def _clamp(input: Number, min: Number = None, max: Number = None, **_: Any) -> Number:
    return np.clip(input, min, max)


def _pad(input: Number, pad: Number, mode: str = "constant", value: Number = 0, **_: Any) -> Number:
    array = np.asarray(input)
    widths = [int(part) for part in pad]
    if mode != "constant" or len(widths) % 2 or len(widths) // 2 > array.ndim:
        raise Unclear
    for number in range(0, len(widths), 2):
        axis = array.ndim - 1 - number // 2
        before, after = widths[number], widths[number + 1]
        length = array.shape[axis]
        array = np.take(array, range(max(-before, 0), length + min(after, 0)), axis=axis)
        margins = [(0, 0)] * array.ndim
        margins[axis] = (max(before, 0), max(after, 0))
        array = np.pad(array, margins, constant_values=value or 0)
    return array


def expand(input: Number, sizes: list[int]) -> Number:
    array = np.asarray(input)
    missing = len(sizes) - array.ndim
    shape = [array.shape[at - missing] if size == -1 else size for at, size in enumerate(sizes)]
    return np.broadcast_to(array, shape)


def _roll(input: Number, shifts: Number, dims: Number = None, dim: Number = None, **_: Any) -> Number:
    axis = dims if dims is not None else dim
    return np.roll(np.asarray(input), shifts, axis=axis)


def _truth(value: Number) -> Any:
    return np.asarray(value).astype(bool) if np.ndim(value) else bool(value)


def _squeeze(input: Number, dim: Number = None, **_: Any) -> Number:
    array = np.asarray(input)
    if dim is None:
        return array.squeeze()
    return array.squeeze(dim) if array.shape[dim] == 1 else array


# the first argument of an operation is called `input` wherever torch calls it so
IN_NUMPY: dict[str, Callable[..., Any]] = {
    "eq": lambda input, other: np.equal(input, other),
    "ne": lambda input, other: np.not_equal(input, other),
    "lt": lambda input, other: np.less(input, other),
    "le": lambda input, other: np.less_equal(input, other),
    "gt": lambda input, other: np.greater(input, other),
    "ge": lambda input, other: np.greater_equal(input, other),
    "logical_and": lambda input, other: np.logical_and(_truth(input), _truth(other)),
    "logical_or": lambda input, other: np.logical_or(_truth(input), _truth(other)),
    "xor": lambda input, other: np.logical_xor(_truth(input), _truth(other)),
    "logical_not": lambda input: np.logical_not(_truth(input)),
    "not": lambda input: not _truth(input),
    "add": lambda input, other, **_: _sum_of(input, other),
    "sub": lambda input, other, **_: np.subtract(as_number(input), as_number(other)),
    "mul": lambda input, other: np.multiply(as_number(input), as_number(other)),
    "div": lambda input, other: np.divide(as_number(input), as_number(other)),
    "floordiv": lambda input, other: np.floor_divide(as_number(input), as_number(other)),
    "minimum": lambda input, other: np.minimum(as_number(input), as_number(other)),
    "maximum": lambda input, other: np.maximum(as_number(input), as_number(other)),
    "neg": lambda input: np.negative(as_number(input)),
    "abs": lambda input: np.abs(as_number(input)),
    "sum": _reduce(np.sum),
    "mean": _reduce(np.mean),
    "any": _reduce(np.any),
    "all": _reduce(np.all),
    "amax": _reduce(np.max),
    "amin": _reduce(np.min),
    "max": _extreme(np.max, np.argmax),
    "min": _extreme(np.min, np.argmin),
    "argmax": lambda input, **how: np.argmax(
        as_number(input), axis=_dim(how), keepdims=bool(how.get("keepdim", False))
    ),
    "argmin": lambda input, **how: np.argmin(
        as_number(input), axis=_dim(how), keepdims=bool(how.get("keepdim", False))
    ),
    "cumsum": lambda input, **how: np.cumsum(as_number(input), axis=_dim(how)),
    "cumprod": lambda input, **how: np.cumprod(as_number(input), axis=_dim(how)),
    "flip": lambda input, **how: np.flip(as_number(input), axis=_axes(how)),
    "roll": _roll,
    "clamp": _clamp,
    "where": lambda condition, input, other: np.where(_truth(condition), input, other),
    "masked_fill": lambda input, mask, value: np.where(_truth(mask), value, input),
    "pad": _pad,
    "squeeze": _squeeze,
    "unsqueeze": lambda input, dim: np.expand_dims(np.asarray(input), int(dim)),
    "transpose": lambda input, dim0=0, dim1=1: np.swapaxes(np.asarray(input), dim0, dim1),
    "flatten": lambda input, **_: np.ravel(input),
    "expand_as": lambda input, other: np.broadcast_to(input, np.shape(other)),
}


def _axes(how: dict[str, Any]) -> Any:
    dims = how.get("dims", how.get("dim"))
    return tuple(dims) if isinstance(dims, list | tuple) else dims


def as_number(value: Number) -> Any:
    array = np.asarray(value)
    return array.astype(np.int64) if array.dtype == bool else array


def _sum_of(one: Number, other: Number) -> Number:
    if isinstance(one, list) and isinstance(other, list):
        return one + other
    return np.add(as_number(one), as_number(other))


def cast(value: Number, name: str) -> Number:
    array = np.asarray(value)
    if name == "bool":
        return _truth(value)
    is_number = name in ("float", "int", "long", "double", "half", "bfloat16", "type", "to", "astype")
    return array.astype(np.int64) if array.dtype == bool and is_number else value


def as_array(value: Number) -> Any:
    array = np.asarray(value)
    if array.dtype == object or array.size > LARGEST_EXAMPLE:
        raise Unclear
    return array


def completions(raw: bool, fill: int) -> Any:
    """[rows, COMPLETION]; `raw`: words go on after the end, as a sampler that does not look draws them."""
    rows = []
    for number, length in enumerate(LENGTHS):
        row = [WORD + (number + at) % 5 for at in range(COMPLETION)]
        if number != 1:
            row[length - 1] = END
        if not raw:
            row[length:] = [fill] * (COMPLETION - length)
        rows.append(row)
    return np.array(rows)


def prompts(pad: int) -> Any:
    return np.array([[pad] * start + [PROMPT_TOKEN] * (PROMPT - start) for start in _STARTS])

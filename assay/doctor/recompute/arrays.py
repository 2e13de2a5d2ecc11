"""numpy arrays that answer to the tensor methods of assay/grpo.py, in float64 and without torch.

The doctor recomputes with the trainer's own formulas: `grpo.group_advantages(tensor(rewards_PG))`. Division by zero and
the like give inf or NaN silently, as they do on tensors. What comes back is turned into a plain array by `plain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = int | Sequence[int]


def tensor(values: Any) -> Any:
    """Numbers become float64; bools and integers keep their kind, since masks and indices are what they are.

    >>> tensor([[1.0, 3.0]]).sum(dim=1, keepdim=True).shape
    (1, 1)
    """
    array = np.asarray(values)
    return (array if array.dtype.kind in "bi" else array.astype(np.float64)).view(_Tensor)


def plain(values: Any) -> Array:
    """The same numbers with numpy's own methods."""
    return np.asarray(values)


class _Tensor(np.ndarray):
    """Methods mean what they mean in torch: `x.where(condition, other)` keeps x where the condition holds."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            result = np.asarray(getattr(ufunc, method)(*(_unwrap(value) for value in inputs), **options))
            return (result if result.dtype.kind in "bi" else result.astype(np.float64, copy=False)).view(_Tensor)

    # one number for each
    def exp(self) -> Any:
        return np.exp(self)

    def expm1(self) -> Any:
        return np.expm1(self)

    def sqrt(self) -> Any:
        return np.sqrt(self)

    def square(self) -> Any:
        return np.square(self)

    def abs(self) -> Any:
        return np.abs(self)

    def isnan(self) -> Any:
        return np.isnan(self)

    def sigmoid(self) -> Any:
        return 1.0 / (1.0 + np.exp(-self))

    def minimum(self, other: Any) -> Any:
        return np.minimum(self, other)

    def maximum(self, other: Any) -> Any:
        return np.maximum(self, other)

    def clamp(self, min: float | None = None, max: float | None = None) -> Any:
        low = self if min is None else np.maximum(self, min)
        return low if max is None else np.minimum(low, max)

    def where(self, condition: Any, other: Any) -> Any:
        return tensor(np.where(plain(condition), plain(self), plain(other)))

    def masked_fill(self, mask: Any, value: float) -> Any:
        return tensor(np.where(plain(mask), value, plain(self)))

    # one number for many
    def sum(self, dim: int | None = None, keepdim: bool = False) -> Any:  # type: ignore[override]
        return tensor(plain(self).sum(axis=dim, keepdims=keepdim))

    def nansum(self, dim: int, keepdim: bool = False) -> Any:
        return tensor(np.nansum(plain(self), axis=dim, keepdims=keepdim))

    def nanmean(self, dim: int, keepdim: bool = False) -> Any:
        counted = (~self.isnan()).sum(dim=dim, keepdim=keepdim)
        return self.nansum(dim=dim, keepdim=keepdim) / counted

    def amax(self, dim: int, keepdim: bool = False) -> Any:
        return tensor(plain(self).max(axis=dim, keepdims=keepdim))

    def amin(self, dim: int, keepdim: bool = False) -> Any:
        return tensor(plain(self).min(axis=dim, keepdims=keepdim))

    def all(self, dim: int | None = None) -> Any:  # type: ignore[override]
        return tensor(plain(self).all(axis=dim))

    def any(self, dim: int | None = None) -> Any:  # type: ignore[override]
        return tensor(plain(self).any(axis=dim))

    def cumsum(self, dim: int) -> Any:  # type: ignore[override]
        return tensor(plain(self).cumsum(axis=dim))

    def logsumexp(self, dim: int) -> Any:
        highest = self.amax(dim=dim, keepdim=True)
        return np.log((self - highest).exp().sum(dim=dim)) + highest.squeeze(dim)

    def softmax(self, dim: int) -> Any:
        powers = (self - self.amax(dim=dim, keepdim=True)).exp()
        return powers / powers.sum(dim=dim, keepdim=True)

    # places and shapes
    def gather(self, dim: int, index: Any) -> Any:
        return tensor(np.take_along_axis(plain(self), plain(index), axis=dim))

    def scatter(self, dim: int, index: Any, value: float | bool) -> Any:
        filled = plain(self).copy()
        np.put_along_axis(filled, plain(index), value, axis=dim)
        return tensor(filled)

    def unsqueeze(self, dim: int) -> Any:
        return tensor(np.expand_dims(plain(self), dim))

    def squeeze(self, dim: int) -> Any:  # type: ignore[override]
        return tensor(plain(self).squeeze(axis=dim))

    def unbind(self, dim: int) -> tuple[Any, ...]:
        return tuple(tensor(part) for part in np.moveaxis(plain(self), dim, 0))

    def expand_as(self, other: Any) -> Any:
        return tensor(np.broadcast_to(plain(self), other.shape))

    # kinds
    def detach(self) -> Any:
        return self

    def bool(self) -> Any:
        return tensor(plain(self).astype(np.bool_))

    def float(self) -> Any:
        """float64, whatever it was: the doctor's numbers are to be more exact than the trainer's."""
        return tensor(plain(self).astype(np.float64))

    def to(self, dtype: Any) -> Any:
        return tensor(plain(self).astype(dtype))

    def new_zeros(self, shape: Shape) -> Any:
        return tensor(np.zeros(shape, dtype=self.dtype))

    def new_ones(self, shape: Shape) -> Any:
        return tensor(np.ones(shape, dtype=self.dtype))

    def new_tensor(self, value: Any) -> Any:
        return tensor(np.asarray(value, dtype=self.dtype))


def _unwrap(value: Any) -> Any:
    return plain(value) if isinstance(value, _Tensor) else value

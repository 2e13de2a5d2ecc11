"""Random numbers that survive a crash.

The trainer's own generators are derived from (seed, purpose, counters), so they have no state to lose. The global
generators of Python, numpy and torch, which models and rewards may use, are saved and restored.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import Tensor


def derived_seed(seed: int, purpose: str, *counters: int) -> int:
    """A seed for one purpose at one point of the run.

    >>> derived_seed(1, "rollout", 3, 0) == derived_seed(1, "rollout", 3, 0) != derived_seed(1, "rollout", 3, 1)
    True
    """
    name = "/".join(map(str, (seed, purpose, *counters)))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1  # torch takes 63 bits


def seed_global_generators(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # all CUDA devices too


def save_global_generators() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, JSON) of the states of all global generators."""
    tensors = {"torch": torch.get_rng_state()}
    # asking for a state would set up a GPU that nobody uses
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        tensors["cuda"] = torch.cuda.get_rng_state()
    kind, keys, position, has_gauss, gauss = numpy.random.get_state()
    version, internal, gauss_next = random.getstate()
    return tensors, {
        "python": [version, list(internal), gauss_next],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
    }


def restore_global_generators(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, position, has_gauss, gauss = state["numpy"]
    numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, gauss))


@contextmanager
def unmoved_generators() -> Iterator[None]:
    """Puts the global generators back, whatever moves them: importing a package is enough to move Python's."""
    tensors, state = save_global_generators()
    try:
        yield
    finally:
        restore_global_generators(tensors, state)

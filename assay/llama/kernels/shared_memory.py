"""How much of a multiprocessor's shared memory a kernel may take. Tiles were measured on a device that has plenty; on
others they keep less on its way from memory, which is slower and computes the same."""

from __future__ import annotations

from functools import cache

import torch
from triton.runtime import driver

PLENTY = 232_448  # bytes, of Hopper


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes; what has no shared memory has plenty."""
    if device.type != "cuda":
        return PLENTY
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])

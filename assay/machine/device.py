"""The device a policy computes on: whether our kernels run there, and how it is made the current one for them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def missing_kernels(device: torch.device) -> str:
    """Why the family's kernels cannot run on this device; empty if they can."""
    if device.type != "cuda" or _has_triton():
        return ""
    return "on a GPU its kernels are Triton's, which is not installed (pip install triton)"


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current GPU, whatever GPU its tensors are on. A backward pass needs no such care: autograd
    makes the GPU current on which the forward step was recorded."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

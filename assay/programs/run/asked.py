"""Plain log-probs of a script's model, where they can be computed without disturbing the script."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from assay.machine.faults import FAULTS
from assay.policy.plain import Plain, plain_logprobs_of_rows

Answer = list[Plain]  # one for each row


def ask(module: nn.Module | None, rows: Sequence[Sequence[int]], temperature: float) -> Answer | None:
    """None where the model cannot be asked, or wants to be called in another way than ours."""
    if module is None or not rows or next(module.parameters(), None) is None or _is_shared():
        return None
    try:
        with _uncompiled():
            return plain_logprobs_of_rows(module, rows, temperature)
    except FAULTS:
        return None


def _is_shared() -> bool:
    """A wrapper may wait in its pass for the other processes, which do not ask."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """What torch.compile made would be compiled again for our shapes, and the script's passes would then change."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()
    eager: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager

"""The model asked again, plainly: rows without padding, eval mode, log-softmax in float32; nothing of it stays."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.machine.faults import FAULTS
from assay.policy.plain import AT_A_TIME, asked_plainly
from assay.record.batch import Array

ROWS = 16  # in one pass; all of one length


@dataclass(frozen=True)
class Answer:
    """Log-probs of each row's tokens but the first, given those before: at the sampling temperature, and at 1."""

    scaled: Sequence[Array]
    raw: Sequence[Array]


def ask(module: nn.Module | None, rows: Sequence[Sequence[int]], temperature: float) -> Answer | None:
    """None where the model cannot be asked."""
    if module is None or not rows or next(module.parameters(), None) is None or _is_shared():
        return None
    scaled: dict[int, Array] = {}
    raw: dict[int, Array] = {}
    by_length: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        by_length.setdefault(len(row), []).append(number)
    try:
        with asked_plainly(module), _uncompiled():
            for length, numbers in by_length.items():
                for first in range(0, len(numbers) if length > 1 else 0, ROWS):
                    part = numbers[first : first + ROWS]
                    _score(module, rows, part, temperature, scaled, raw)
    except FAULTS:
        return None
    empty = np.zeros(0)
    return Answer(
        [scaled.get(number, empty) for number in range(len(rows))],
        [raw.get(number, empty) for number in range(len(rows))],
    )


def _is_shared() -> bool:
    """A wrapper may wait in its pass for the other processes, which do not ask."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """What torch.compile made would be made anew for our shapes, and the script's passes would then run another way."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()
    eager: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


def _score(
    module: nn.Module,
    rows: Sequence[Sequence[int]],
    part: Sequence[int],
    temperature: float,
    scaled: dict[int, Array],
    raw: dict[int, Array],
) -> None:
    device = next(module.parameters()).device
    ids_BL = torch.tensor([rows[number] for number in part], dtype=torch.int64, device=device)
    how = {"use_cache": False} if hasattr(getattr(module, "config", None), "use_cache") else {}
    logits_BLV = logits_of(module(ids_BL, **how))
    if logits_BLV is None or logits_BLV.shape[:2] != ids_BL.shape:
        raise ValueError("no logits")
    logits_NV = logits_BLV[:, :-1].reshape(-1, logits_BLV.shape[-1])
    chosen_N1 = ids_BL[:, 1:].reshape(-1, 1)
    for temper, kept in ((temperature, scaled), (1.0, raw)):
        pieces = []
        for first in range(0, len(logits_NV), AT_A_TIME):
            logprobs_nV = torch.log_softmax(logits_NV[first : first + AT_A_TIME].float() / temper, dim=-1)
            pieces.append(logprobs_nV.gather(1, chosen_N1[first : first + AT_A_TIME]))
        rows_BT = torch.cat(pieces).reshape(len(part), -1).double().cpu().numpy()
        kept.update(zip(part, rows_BT, strict=True))


def logits_of(output: object) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(output, (tuple, list)):
        return next((one for one in output if isinstance(one, Tensor) and one.dim() == 3), None)
    return None

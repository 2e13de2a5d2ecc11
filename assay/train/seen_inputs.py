"""What the model is really given in the scoring pass, and which dropout is active there: hooks, for one update.

Shape legend: R rows of S tokens (see ModelInputs), B completions of T tokens.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from assay.policy.policy import GivenTokens, Policy
from assay.record.batch import Array
from assay.types import Microbatch

_Seen = tuple[list[int], list[int], list[bool]]  # ids, positions, whether the last token sees them


class SeenInputs:
    """`arrays` has, for each completion, the tokens of its row (its prompt and itself, where rows are shared), and
    which of them its last token sees."""

    def __init__(self, policy: Policy, rows: Sequence[int]) -> None:
        self._policy = policy
        self._model = policy.model
        self._rows = rows
        self._hooks: list[Any] = []
        self._packed: GivenTokens | None = None
        self._given: tuple[Tensor, Tensor | None, Tensor | None] | None = None
        self._seen: dict[int, _Seen] = {}
        self._active: set[int] = set()

    def open(self) -> None:
        self._policy.onlookers.append(self._keep_packed)  # of a packed pass no module is called, and so no hook
        asked = getattr(self._model, "base_model", self._model)
        self._hooks.append(asked.register_forward_pre_hook(self._keep, with_kwargs=True))
        for module in self._model.modules():
            rate = module.p if isinstance(module, _DropoutNd) else getattr(module, "attention_dropout", 0.0)
            if isinstance(rate, float) and rate > 0:
                self._hooks.append(module.register_forward_pre_hook(self._note_mode))

    def close(self) -> None:
        if self._keep_packed in self._policy.onlookers:
            self._policy.onlookers.remove(self._keep_packed)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def dropout_modules(self) -> int:
        return len(self._active)

    def take(self, batch: Microbatch) -> None:
        """The pass of this micro-batch is over: keeps what it was given of the rows that are examined."""
        if self._packed is not None:
            for number, row in enumerate(batch.rows):
                if row in self._rows:  # packed attention sees the prompt and its own completion, and nothing else
                    ids, positions = self._packed.sequence(number)
                    self._seen[row] = ids, positions, [True] * len(ids)
        elif self._given is not None and self._given[0].shape == batch.inputs.ids_RS.shape:
            self._seen |= _inputs_by_row(batch, *self._given, wanted=self._rows)
        self._given = self._packed = None

    def arrays(self) -> dict[str, Array]:
        """Empty if the model was not asked in the shape of the micro-batches."""
        if any(row not in self._seen for row in self._rows):
            return {}
        width = max(len(self._seen[row][0]) for row in self._rows)
        columns = {}
        for number, name in enumerate(("input_ids", "position_ids", "attention_mask")):
            lists = [self._seen[row][number] for row in self._rows]
            columns[name] = np.array([[*values, *[0] * (width - len(values))] for values in lists])
        return columns

    def _keep(self, module: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        ids_RS = arguments[0] if arguments else named.get("input_ids")
        if isinstance(ids_RS, Tensor):
            self._given = ids_RS, named.get("attention_mask"), named.get("position_ids")

    def _keep_packed(self, packed: GivenTokens) -> None:
        self._packed = packed

    def _note_mode(self, module: nn.Module, arguments: object) -> None:
        if module.training:
            self._active.add(id(module))


def _inputs_by_row(
    batch: Microbatch, ids_RS: Tensor, attention: Tensor | None, positions_RS: Tensor | None, wanted: Container[int]
) -> dict[int, _Seen]:
    rows, width = ids_RS.shape
    ids, columns = ids_RS.tolist(), range(width)
    positions = [list(columns)] * rows if positions_RS is None else positions_RS.expand(rows, width).tolist()
    branches = None if batch.inputs.branches_RS is None else batch.inputs.branches_RS.tolist()
    seen: dict[int, _Seen] = {}
    before = [0] * rows  # completions met so far in each row
    for row_number, predictors in zip(batch.rows, batch.inputs.predictors_BT.tolist(), strict=True):
        real = [predictor for predictor in predictors if predictor >= 0]
        row = real[0] // width
        before[row] += 1
        if row_number not in wanted:
            continue
        own = list(columns) if branches is None else [c for c in columns if branches[row][c] in (0, before[row])]
        last = min(real[-1] % width + 1, width - 1) if branches is None else own[-1]
        visible = _visible(attention, row, last, width)
        seen[row_number] = (
            [ids[row][column] for column in own],
            [positions[row][column] for column in own],
            [visible[column] for column in own],
        )
    return seen


def _visible(attention: Tensor | None, row: int, last: int, width: int) -> list[bool]:
    """Which columns the token in column `last` sees, under a mask of any of the forms that models take."""
    causal = [column <= last for column in range(width)]
    if attention is None:
        return causal
    if attention.dim() == 2:
        allowed = attention[row].bool().tolist()
    else:
        seen_S = attention[row, 0, last]
        allowed = (seen_S if seen_S.dtype == torch.bool else seen_S > -1.0).tolist()
    return [one and other for one, other in zip(causal, allowed, strict=True)]

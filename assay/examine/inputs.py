"""What a model is really given in its forward passes, and how much dropout is active there: hooks, for one update.

Shape legend: R rows of S tokens (see ModelInputs), B completions of T tokens, Q tokens that look at S tokens.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from assay.examine.part import stack
from assay.policy.policy import GivenTokens, Policy
from assay.record.batch import Array
from assay.types import Microbatch

NAMES = ("input_ids", "position_ids", "attention_mask")
_Row = tuple[list[int], list[int], list[bool]]  # ids, positions, whether the last token sees them


class PassInputs:
    """`passes` holds the tensors that each forward pass of a model was given, by name. A 4-D mask is as large as the
    square of its rows: it is kept as the 2-D padding mask that it stands for, or left out, unless `whole_masks`."""

    def __init__(self, model: nn.Module, *, whole_masks: bool = False) -> None:
        self.model = model
        self.whole_masks = whole_masks
        self.passes: list[dict[str, Tensor]] = []
        self.left_out = ""  # a sentence about what was given and is not kept
        self.dropout_modules = 0  # active in a pass, at most

    @contextmanager
    def watching(self, called: nn.Module | None = None) -> Iterator[PassInputs]:
        """`called` is the module that is called, where that is a part of the model."""
        hook = (called or self.model).register_forward_pre_hook(self._keep, with_kwargs=True)
        try:
            yield self
        finally:
            hook.remove()

    def joined(self) -> dict[str, Tensor]:
        """A pass that was cut into pieces of the same width, whole; where the width changes, the last pieces."""
        joined: dict[str, Tensor] = {}
        for tensors in self.passes:
            for name, values in tensors.items():
                if values.dim() == 2:
                    is_piece = name in joined and joined[name].shape[1] == values.shape[1]
                    joined[name] = torch.cat([joined[name], values]) if is_piece else values
        return joined

    def _keep(self, module: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        given = {**dict(zip(("input_ids", "attention_mask", "position_ids"), arguments, strict=False)), **named}
        kept = {name: given[name].detach() for name in NAMES if isinstance(given.get(name), Tensor)}
        mask = kept.get("attention_mask")
        if mask is not None and mask.dim() == 4 and not self.whole_masks:
            padding_BS = padding_mask(mask)
            if padding_BS is None:
                del kept["attention_mask"]
                self.left_out = "the 4-D attention mask does more than hide padding and the future; it was not examined"
            else:
                kept["attention_mask"] = padding_BS
        self.passes.append(kept)
        self.dropout_modules = max(self.dropout_modules, active_dropout(self.model))


def padding_mask(mask_BHQS: Tensor) -> Tensor | None:
    """The 2-D mask that a causal 4-D one (0 and 1, or added to scores) stands for; None if it does anything else."""
    if (mask_BHQS != mask_BHQS[:, :1]).any():
        return None  # the heads do not see the same
    seen_BQS = _is_allowed(mask_BHQS[:, 0])
    queries, width = seen_BQS.shape[1:]
    padding_BS = seen_BQS[:, -1]
    causal_QS = torch.ones(queries, width, dtype=torch.bool, device=seen_BQS.device).tril(width - queries)
    # what a padding token sees does not matter: some masks hide even itself, others let it see everything
    sees_itself_BQ = seen_BQS.diagonal(width - queries, dim1=1, dim2=2)
    is_real_BQ = sees_itself_BQ & ~(seen_BQS & ~causal_QS).any(dim=2)
    differs_BQS = (seen_BQS != (causal_QS & padding_BS[:, None])) & is_real_BQ[:, :, None]
    return None if differs_BQS.any() else padding_BS


def _is_allowed(mask: Tensor) -> Tensor:
    if mask.dtype.is_floating_point and not (mask == 1).any():
        return mask > -1.0  # added to the scores
    return mask.bool()


def active_dropout(model: nn.Module) -> int:
    """Modules in training mode that drop something. Attention and recurrent layers have no module for it."""
    return sum(_dropout_rate(module) > 0 for module in model.modules() if module.training)


def _dropout_rate(module: nn.Module) -> float:
    if isinstance(module, _DropoutNd):
        return module.p
    if isinstance(module, nn.RNNBase):
        return module.dropout if module.num_layers > 1 else 0.0
    rate = getattr(module, "attention_dropout", 0.0)
    return rate if isinstance(rate, float) else 0.0


class RowInputs:
    """`arrays` has, for each completion, the tokens of its row (its prompt and itself, where rows are shared), and
    which of them its last token sees."""

    def __init__(self, policy: Policy, rows: Sequence[int]) -> None:
        self._policy, self._rows = policy, rows
        self._inputs = PassInputs(policy.model, whole_masks=True)
        self._packed: GivenTokens | None = None
        self._seen: dict[int, _Row] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._policy.onlookers.append(self._keep_packed)  # of a packed pass no module is called, and so no hook
        try:
            with self._inputs.watching(getattr(self._policy.model, "base_model", None)):
                yield
        finally:
            self._policy.onlookers.remove(self._keep_packed)

    @property
    def dropout_modules(self) -> int:
        return self._inputs.dropout_modules

    def take(self, batch: Microbatch) -> None:
        """The pass of this micro-batch is over: keeps what it was given of the rows that are examined."""
        given = self._inputs.passes[-1] if self._inputs.passes else {}
        if self._packed is not None:
            for number, row in enumerate(batch.rows):
                if row in self._rows:  # packed attention sees the prompt and its own completion, and nothing else
                    ids, positions = self._packed.sequence(number)
                    self._seen[row] = ids, positions, [True] * len(ids)
        elif "input_ids" in given and given["input_ids"].shape == batch.inputs.ids_RS.shape:
            given_ids, given_positions, attention = (given.get(name) for name in NAMES)
            assert given_ids is not None
            self._seen |= _inputs_by_row(batch, given_ids, attention, given_positions, wanted=self._rows)
        self._packed = None
        self._inputs.passes.clear()

    def arrays(self) -> dict[str, Array]:
        """Empty if the model was not asked in the shape of the micro-batches."""
        if any(row not in self._seen for row in self._rows):
            return {}
        return {name: stack([self._seen[row][place] for row in self._rows]) for place, name in enumerate(NAMES)}

    def _keep_packed(self, packed: GivenTokens) -> None:
        self._packed = packed


def _inputs_by_row(
    batch: Microbatch, ids_RS: Tensor, attention: Tensor | None, positions_RS: Tensor | None, wanted: Container[int]
) -> dict[int, _Row]:
    rows, width = ids_RS.shape
    ids, columns = ids_RS.tolist(), range(width)
    positions = [list(columns)] * rows if positions_RS is None else positions_RS.expand(rows, width).tolist()
    branches = None if batch.inputs.branches_RS is None else batch.inputs.branches_RS.tolist()
    seen: dict[int, _Row] = {}
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
    allowed_S = attention[row].bool() if attention.dim() == 2 else _is_allowed(attention[row, 0, last])
    return [is_before and is_allowed for is_before, is_allowed in zip(causal, allowed_S.tolist(), strict=True)]

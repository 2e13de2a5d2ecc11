"""Updates --> batches: the first at once, for the model is asked again with the weights of that moment; others later.

What is put off costs the script nothing while it is observed: it is read in one go when the observation is over.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from assay.calibration import Tally
from assay.machine.faults import FAULTS
from assay.policy.plain import Plain, plain_logprobs_of_rows
from assay.programs.run.batches import MOST_BATCHES, add_after, batch_of, fields_of
from assay.programs.run.observe.models import Models
from assay.programs.run.roles import find_roles
from assay.programs.run.watched import WatchedRun, WatchedUpdate, as_of_now

AT_MOST = 12  # updates that are read at once, where none of them can be asked about


class UpdateReader:
    def __init__(self, run: WatchedRun, models: Models) -> None:
        self.run, self.models = run, models
        self._fields: dict[str, Any] | None = None
        self._asked: tuple[int, Sequence[Sequence[int]], float] | None = None  # of the policy, for the update under way
        self._answers: dict[tuple[Any, ...], list[Plain] | None] = {}
        self._later: list[tuple[WatchedUpdate, WatchedRun]] = []

    def begins(self, update: WatchedUpdate) -> bool:
        """Before the update is read or put off: whether it is read now. Its roles are then known."""
        is_now = len(self.run.batches) < MOST_BATCHES and len(updates_since_sampling(self.run)) <= AT_MOST
        if is_now:
            self._find_roles(update)
        return is_now

    def before(self, update: WatchedUpdate, *, now: bool) -> None:
        """The weights are still those that the loss was computed with."""
        self._asked = None
        self._fields = fields_of(self.run, update, self._ask) if now else None
        if not now:
            self._later.append((update, as_of_now(self.run)))

    def after(self, update: WatchedUpdate) -> None:
        if self._fields is not None:
            asked = self._asked if update.number == 0 else None  # later steps follow earlier gradients too
            add_after(self._fields, lambda: None if asked is None else self._ask(*asked))
            self._add(self._fields, update)
            self._fields = None

    def settle(self) -> None:
        """Reads what was put off."""
        later, self._later = self._later, []
        for update, then in later:
            self._find_roles(update)
            fields = fields_of(then, update, lambda *_: None)
            if fields is not None:
                add_after(fields, lambda: None)
                self._add(fields, update)

    def _add(self, fields: Mapping[str, Any], update: WatchedUpdate) -> None:
        batch = batch_of(fields, update, self.run.notes)
        if batch is not None:
            self.run.batches.append(batch)

    def _find_roles(self, update: WatchedUpdate) -> None:
        for backward in update.backwards:
            backward.roles = find_roles(backward.loss, self.run.kinds)

    def _ask(
        self,
        number: int,
        rows: Sequence[Sequence[int]],
        temperature: float,
        first: int = 0,
        tally: Tally | None = None,
        prompts: Sequence[int] = (),
    ) -> list[Plain] | None:
        """A reference answers once for all updates of a rollout batch. `first` is the position of the first token;
        `tally` counts what follows the prompts."""
        self._asked = self._asked or (number, rows, temperature)
        module = self.models.module(number)
        if module is None or not self.run.models[number].gives_logits:
            return None
        key = (number, self.models.sums(module), temperature, tuple(map(tuple, rows)), first)
        if key not in self._answers or tally is not None:
            self._answers[key] = _ask(_Moved(module, first) if first else module, rows, temperature, tally, prompts)
        return self._answers[key]


class _Moved(nn.Module):
    """The model, reading its tokens at later positions."""

    def __init__(self, model: nn.Module, first: int) -> None:
        super().__init__()
        self.model, self.first = model, first

    def forward(self, ids_NL: torch.Tensor) -> Any:
        positions_L = torch.arange(self.first, self.first + ids_NL.shape[1], device=ids_NL.device)
        return self.model(ids_NL, position_ids=positions_L.expand(ids_NL.shape))


def updates_since_sampling(run: WatchedRun) -> list[WatchedUpdate]:
    """All updates if nothing was sampled: before, a script may have imitated answers."""
    calls = [call.value.order for call in run.generations[:1]] + [draw.value.order for draw in run.samplings[:1]]
    return [update for update in run.updates if not calls or update.order > min(calls)]


def _ask(
    module: nn.Module, rows: Sequence[Sequence[int]], temperature: float, tally: Tally | None, prompts: Sequence[int]
) -> list[Plain] | None:
    """Plain log-probs of each row; None where the model cannot be asked without disturbing the script."""
    if not rows or next(module.parameters(), None) is None or _is_shared():
        return None
    try:
        with _uncompiled():
            return plain_logprobs_of_rows(module, rows, temperature, tally, prompts)
    except FAULTS:  # it wants to be called in another way than ours
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

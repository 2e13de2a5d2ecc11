"""Watches the gradients: made by a backward, cleared, clipped, used by a step; and which optimizer holds what.

The parameters themselves are looked at, so that it does not matter by which call they were cleared. What happened is
written to `run.gradients`; what it means is for the illnesses to say.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.examine.steps import held_by_optimizers, parameters_below
from assay.programs.graph import Value
from assay.programs.run.gradients import Bypass, GradientEvent, KeptGraphs, LeftOut, OptimizerStep, SharedStep
from assay.programs.run.sight import Sight
from assay.programs.run.watched import WatchedRun
from assay.verdict import Place

FIRST_NUMBERS = 64  # of a parameter, that show whether it moves
STEPS_UNHELD = 3  # optimizer steps since it was reached first
PARAMETERS_LOOKED_AT = 8  # parameters that show whether gradients are there


@dataclass(eq=False)
class _Optimizer:
    held: Sequence[weakref.ref[Tensor]] = ()
    ids: frozenset[int] = frozenset()
    stepped_at: int = 0  # index into the moves
    was_reached: bool = False  # see OptimizerStep
    began_clean: bool = False
    lost: list[Place] = field(default_factory=list)
    before: frozenset[tuple[int, int]] = frozenset()  # its gradients when the last backward began

    @property
    def parameters(self) -> list[Tensor]:
        return [parameter for ref in self.held if (parameter := ref()) is not None]


@dataclass(frozen=True)
class _Reached:
    """A parameter at the end of a loss's graph."""

    weight: weakref.ref[Tensor]
    numbers: Tensor  # the first of them, when it was reached first
    since: int  # optimizer steps made before


class GradientLedger:
    def __init__(self, run: WatchedRun) -> None:
        self.run = run
        self._reached: dict[int, _Reached] = {}
        self._held_elsewhere: Collection[int] | None = None  # by optimizers that did not step, when last asked
        self._moves: list[GradientEvent] = []
        self._optimizers: dict[int, _Optimizer] = {}
        self._last_steps: list[tuple[int, Place]] = []  # since the last backward: which optimizer, and where
        self._wrappers: dict[int, tuple[weakref.ref[Any], int]] = {}  # DDP and its passes with gradients since a step

    def backward(self, place: Place, loss: Tensor | None = None) -> None:
        if loss is not None:
            self._reach(loss)
        for optimizer in self._optimizers.values():
            if not _has_gradient(optimizer.parameters):
                if optimizer.was_reached and GradientEvent("backward", place) in self._moves[optimizer.stepped_at :]:
                    optimizer.lost.append(place)
                optimizer.began_clean, optimizer.was_reached = True, False
            optimizer.before = _states(optimizer.parameters)
        self._moves.append(GradientEvent("backward", place))
        self._last_steps = []

    def after_backward(self) -> None:
        for optimizer in self._optimizers.values():
            # gradients that the backward left as they were are put there by the script, in the place of the last ones
            is_changed = _states(optimizer.parameters) != optimizer.before
            optimizer.was_reached = optimizer.was_reached or (is_changed and _has_gradient(optimizer.parameters))

    def happened(self, kind: str, place: Place) -> None:
        if kind == "scheduler" and not self._optimizers and self.run.gradients.scheduler_before_steps is None:
            self.run.gradients.scheduler_before_steps = place
        self._moves.append(GradientEvent(kind, place))

    def wrapped(self, module: Any) -> None:
        self._wrappers[id(module)] = (weakref.ref(module), 0)
        self.run.gradients.is_wrapped = True

    def passed(self, module: nn.Module) -> None:
        if id(module) in self._wrappers and torch.is_grad_enabled():
            ref, passes = self._wrappers[id(module)]
            self._wrappers[id(module)] = (ref, passes + 1)

    def stepping(self, optimizer: Any, held: Sequence[Tensor], trained: Iterable[nn.Module], place: Place) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            known = self._optimizers.get(id(optimizer))
            mine = known or _Optimizer()
            moves = tuple(self._moves[mine.stepped_at :])
            self.run.gradients.steps.append(
                OptimizerStep(
                    place=place,
                    is_first=known is None,
                    moves=moves,
                    emptied_at=_emptied_at(moves, held),
                    was_reached=mine.was_reached,
                    began_clean=mine.began_clean,
                    lost=tuple(mine.lost),
                    optimizer=id(optimizer),
                    held=sum(parameter.requires_grad for parameter in held),
                    with_gradient=sum(parameter.grad is not None for parameter in held),
                )
            )
            self._find_shared(id(optimizer), held, place)
            self._find_bypasses(place)
            mine.held, mine.ids = [weakref.ref(parameter) for parameter in held], frozenset(map(id, held))
            self._optimizers[id(optimizer)] = mine
            self._find_left_out(trained, place)

    def stepped(self, optimizer: Any, place: Place, known: Iterable[tuple[Any, Value, int]]) -> None:
        self._moves.append(GradientEvent("step", place))
        self._last_steps.append((id(optimizer), place))
        mine = self._optimizers.get(id(optimizer))
        if mine is not None:
            mine.stepped_at, mine.was_reached, mine.began_clean, mine.lost = len(self._moves), False, False, []
        self._find_kept_graphs(known)

    def _find_shared(self, key: int, held: Sequence[Tensor], place: Place) -> None:
        """Another optimizer has stepped since the last backward, with the same tensors."""
        for other_key, spot in reversed(self._last_steps):
            other = self._optimizers.get(other_key)
            if other is None or other_key == key:
                continue
            both = [parameter for parameter in held if id(parameter) in other.ids and parameter.grad is not None]
            if both:
                self.run.gradients.shared.append(SharedStep(len(both), place, spot))

    def _find_bypasses(self, place: Place) -> None:
        if self._moves and self._moves[-1].kind == "step":
            return  # another optimizer has just used the same gradients
        for key, (ref, passes) in list(self._wrappers.items()):
            wrapper = ref()
            if wrapper is None:
                del self._wrappers[key]
                continue
            if not passes and _has_gradient(list(wrapper.module.parameters())):
                made_at = [move.place for move in self._moves if move.kind == "backward"]
                made_at += [forward.value.place for forward in self.run.forwards if not forward.value.context.no_grad]
                self.run.gradients.bypasses.append(
                    Bypass(
                        type(wrapper.module).__name__, type(wrapper).__name__, made_at[-1] if made_at else None, place
                    )
                )
            self._wrappers[key] = (ref, 0)
        self.run.gradients.is_wrapped = bool(self._wrappers)

    def _reach(self, loss: Tensor) -> None:
        """What the loss is made of, whatever module holds it: it may stand in a plain list."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for key, ref in parameters_below(loss).items():
                known = self._reached.get(key)
                if known is None or known.weight() is not ref():
                    self._reached[key] = _Reached(ref, _first_numbers(ref()), len(self.run.gradients.steps))

    def _has_moved(self, weight: Tensor) -> bool:
        """Since a loss reached it first: the script changes it itself, as it copies weights of more digits."""
        reached = self._reached.get(id(weight))
        return reached is not None and not torch.equal(_first_numbers(weight), reached.numbers)

    def _unheld(self, held: frozenset[int]) -> list[Tensor]:
        """Parameters that losses reached before several steps: no optimizer holds them and nobody moved them."""
        steps = len(self.run.gradients.steps)
        found = [
            weight
            for reached in self._reached.values()
            if (weight := reached.weight()) is not None
            and id(weight) not in held
            and steps - reached.since > STEPS_UNHELD
            and weight.grad is not None
            and not self._has_moved(weight)
        ]
        if found and self._held_elsewhere is None:
            self._held_elsewhere = held_by_optimizers().keys()
        return [weight for weight in found if id(weight) not in (self._held_elsewhere or ())]

    def _find_left_out(self, trained: Iterable[nn.Module], place: Place) -> None:
        held = frozenset().union(*(optimizer.ids for optimizer in self._optimizers.values()))
        trainable: dict[int, Tensor] = {
            id(parameter): parameter
            for module in trained
            for parameter in module.parameters()
            if parameter.requires_grad
        }
        missing: dict[int, Tensor] = {
            key: parameter
            for key, parameter in trainable.items()
            if parameter.grad is not None and id(parameter) not in held and not self._has_moved(parameter)
        }
        unheld = {id(weight): weight for weight in self._unheld(held)}
        count = len(trainable.keys() | (self._reached.keys() if unheld else set()))
        missing |= unheld
        if trainable or unheld:
            self.run.gradients.left_out = LeftOut(len(missing), count, place) if missing else None

    def _find_kept_graphs(self, known: Iterable[tuple[Any, Value, int]]) -> None:
        """Tensors with a graph that outlive the updates they were made in."""
        borders = [update.order for update in self.run.updates]
        made: dict[Place, set[int]] = {}
        for ref, value, _ in known:
            seen = value.thing
            if not isinstance(seen, Sight) or not seen.requires_grad or value.op in ("given", "changed"):
                continue
            if seen.size > 1 or value.order >= borders[-1]:
                continue
            tensor = ref()
            if tensor is not None and tensor.grad_fn is not None:
                made.setdefault(value.place, set()).add(sum(border <= value.order for border in borders))
        self.run.gradients.kept += [KeptGraphs(len(updates), place) for place, updates in made.items()]


def _states(parameters: Sequence[Tensor]) -> frozenset[tuple[int, int]]:
    """Which gradients there are, and how often each was written."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return frozenset((id(gradient), gradient._version) for gradient in gradients)


def _first_numbers(weight: Tensor | None) -> Tensor:
    return torch.empty(0) if weight is None else weight.detach().flatten()[:FIRST_NUMBERS].clone()


def _emptied_at(moves: Sequence[GradientEvent], held: Sequence[Tensor]) -> Place | None:
    """The last zero_grad behind the last backward, if it left no gradient for the step."""
    behind: list[GradientEvent] | None = None
    for move in moves:
        if move.kind == "backward":
            behind = []
        elif behind is not None:
            behind.append(move)
    cleared = [move.place for move in behind or () if move.kind == "zero_grad"]
    return cleared[-1] if cleared and not _has_gradient(held, most=len(held)) else None


def _has_gradient(parameters: Sequence[Tensor], most: int = PARAMETERS_LOOKED_AT) -> bool:
    looked = 0
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for parameter in parameters:
            if parameter.grad is None:
                continue
            gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
            # the first row shows it in most cases; an embedding is large
            if (gradient.dim() and bool(gradient[:1].any())) or bool(gradient.any()):
                return True
            looked += 1
            if looked >= most:
                return False
    return False

"""What became of the gradients: made by a backward, cleared, clipped, used by a step; and which optimizer holds what.

The parameters themselves are looked at, so that it does not matter by which call they were cleared.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.programs.run.watched import Sight, WatchedRun
from assay.programs.value import Value
from assay.verdict import Place

FEW = 8  # parameters that tell whether gradients are there
KEPT = 3  # earlier updates whose tensors with a graph are still alive


@dataclass(eq=False)
class _Optimizer:
    held: Sequence[weakref.ref[Tensor]]
    ids: frozenset[int]
    place: Place
    stepped_at: int  # index into the moves
    reached: bool = False  # a backward since its last step gave it gradients
    clean: bool = False  # at the beginning of a backward since its last step it had none
    lost: list[Place] = field(default_factory=list)  # of backwards whose gradients were cleared before the next one

    @property
    def parameters(self) -> list[Tensor]:
        return [one for ref in self.held if (one := ref()) is not None]


class Ledger:
    def __init__(self, run: WatchedRun) -> None:
        self.run = run
        self._moves: list[tuple[str, Place]] = []
        self._optimizers: dict[int, _Optimizer] = {}
        self._wrappers: dict[int, tuple[weakref.ref[Any], int]] = {}  # DDP and its passes with gradients since a step
        self._scheduled: Place | None = None
        self._left_out: tuple[int, int, Place] | None = None
        self._late_clips = 0
        self._lost = 0  # steps before which gradients were lost

    # -- what happens

    def backward(self, place: Place) -> None:
        for one in self._optimizers.values():
            if not _has_gradient(one.parameters):
                if one.reached and any(move == ("backward", place) for move in self._since(one)):
                    one.lost.append(place)
                one.clean, one.reached = True, False
        self._moves.append(("backward", place))

    def after_backward(self) -> None:
        for one in self._optimizers.values():
            one.reached = one.reached or _has_gradient(one.parameters)

    def happened(self, kind: str, place: Place) -> None:
        if kind == "scheduler" and not self._optimizers and self._scheduled is None:
            self._scheduled = place
        self._moves.append((kind, place))

    def wrapped(self, module: Any) -> None:
        self._wrappers[id(module)] = (weakref.ref(module), 0)

    def passed(self, module: nn.Module) -> None:
        if id(module) in self._wrappers and torch.is_grad_enabled():
            ref, passes = self._wrappers[id(module)]
            self._wrappers[id(module)] = (ref, passes + 1)

    def stepping(self, optimizer: Any, held: Sequence[Tensor], trained: Iterable[nn.Module], place: Place) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            known = self._optimizers.get(id(optimizer))
            self._judge(known, held, place)
            self._overlap(id(optimizer), held, place)
            self._bypassed(place)
            mine = known or _Optimizer([], frozenset(), place, 0)
            mine.held, mine.ids, mine.place = [weakref.ref(one) for one in held], frozenset(map(id, held)), place
            self._optimizers[id(optimizer)] = mine
            self._foreign(trained, place)

    def stepped(self, optimizer: Any, place: Place, known: Iterable[tuple[Any, Value, int]]) -> None:
        self._moves.append((f"step {id(optimizer)}", place))
        one = self._optimizers.get(id(optimizer))
        if one is not None:
            one.stepped_at, one.reached, one.clean, one.lost = len(self._moves), False, False, []
        self._alive(known)

    def end(self) -> None:
        """What can only be said when every optimizer has been seen."""
        if self._left_out is not None:
            missing, trainable, place = self._left_out
            all_of = "none" if missing == trainable else f"{missing} of {trainable}"
            self.run.found(
                "OPT02",
                f"{all_of} of the policy's trainable tensors {'is' if missing == trainable else 'are not'} held by an "
                f"optimizer: {missing} get a gradient in each update and are never changed",
                place,
            )
        if self._scheduled is not None and self._optimizers:
            self.run.found(
                "LOSS04",
                "the scheduler steps before the first step of the optimizer: the first learning rate is never used",
                self._scheduled,
            )
        if self._optimizers:
            self.run.is_well("LOSS04", "gradients are made, used and cleared in this order")
            self.run.is_well("OPT04", "no tensor is stepped by two optimizers")
        if self._wrappers:
            self.run.is_well("OPT03", "gradients come from passes through the wrapper")

    # -- what is judged at a step

    def _since(self, one: _Optimizer) -> list[tuple[str, Place]]:
        return self._moves[one.stepped_at :]

    def _judge(self, known: _Optimizer | None, held: Sequence[Tensor], place: Place) -> None:
        since = self._moves if known is None else self._since(known)
        kinds = [kind for kind, _ in since]
        backwards = [number for number, kind in enumerate(kinds) if kind == "backward"]
        if not backwards:
            return
        cleared = [number for number, kind in enumerate(kinds) if kind == "zero_grad" and number > backwards[-1]]
        if cleared and (known is None or known.reached) and not _has_gradient(held, most=len(held)):
            self.run.found(
                "LOSS04",
                "gradients are cleared between backward and step: the optimizer finds none",
                since[cleared[-1]][1],
                since[backwards[-1]][1],
                place,
            )
            return
        if known is None:
            return
        self._lost += bool(known.lost)
        if known.lost and self._lost > 1:  # a step that a scaler skips once is no fault
            count = kinds.count("backward")
            zeros = [spot for kind, spot in since if kind == "zero_grad"]
            self.run.found(
                "LOSS04",
                f"gradients of {len(known.lost)} of {count} backward passes are cleared before the step that should "
                "use "
                "them",
                *(zeros[-1:] or [known.lost[0]]),
                place,
            )
        elif not known.lost and not known.clean and known.reached:
            self.run.found(
                "LOSS04",
                "gradients of the last step are still there when the next backward adds its own: nothing cleared them",
                place,
                since[backwards[0]][1],
            )
        clips = [number for number, kind in enumerate(kinds) if kind == "clip_grad_norm"]
        if clips and max(clips) < backwards[0] and "zero_grad" not in kinds[: clips[0]]:
            self._late_clips += 1
            if self._late_clips > 1:
                self.run.found(
                    "LOSS04",
                    "gradients are clipped after the step that used them, and not before it",
                    since[clips[0]][1],
                    place,
                )

    def _overlap(self, key: int, held: Sequence[Tensor], place: Place) -> None:
        """Another optimizer has stepped since the last backward, with the same tensors."""
        for kind, spot in reversed(self._moves):
            if kind == "backward":
                return
            other = self._optimizers.get(int(kind[5:])) if kind.startswith("step ") else None
            if other is None or int(kind[5:]) == key:
                continue
            both = [one for one in held if id(one) in other.ids and one.grad is not None]
            if both:
                self.run.found(
                    "OPT04",
                    f"{len(both)} tensors are held by two optimizers, and both step with the same gradient",
                    place,
                    spot,
                )

    def _bypassed(self, place: Place) -> None:
        if self._moves and self._moves[-1][0].startswith("step "):
            return  # another optimizer has just used the same gradients
        for key, (ref, passes) in list(self._wrappers.items()):
            wrapper = ref()
            if wrapper is None:
                del self._wrappers[key]
                continue
            if not passes and _has_gradient(list(wrapper.module.parameters())):
                spots = [spot for kind, spot in self._moves if kind == "backward"]
                inner = [one.value.place for one in self.run.forwards if not one.value.context.no_grad]
                self.run.found(
                    "OPT03",
                    f"the gradients of {type(wrapper.module).__name__} were made without a pass through "
                    f"{type(wrapper).__name__}: they are not averaged over the processes",
                    *(inner[-1:] or spots[-1:]),
                    place,
                )
            self._wrappers[key] = (ref, 0)

    def _foreign(self, trained: Iterable[nn.Module], place: Place) -> None:
        held = frozenset().union(*(one.ids for one in self._optimizers.values()))
        trainable = {id(one): one for module in trained for one in module.parameters() if one.requires_grad}
        if not trainable:
            return
        pulled = [one for one in trainable.values() if one.grad is not None]
        missing = [one for one in pulled if id(one) not in held]
        self._left_out = (len(missing), len(trainable), place) if missing else None

    # -- what is kept

    def _alive(self, known: Iterable[tuple[Any, Value, int]]) -> None:
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
        for place, updates in made.items():
            if len(updates) >= KEPT:
                self.run.found(
                    "PERF02",
                    f"numbers of {len(updates)} earlier updates are kept with their graphs: detach() or item() them",
                    place,
                )


def _has_gradient(parameters: Sequence[Tensor], most: int = FEW) -> bool:
    looked = 0
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for one in parameters:
            if one.grad is None:
                continue
            gradient = one.grad.coalesce().values() if one.grad.is_sparse else one.grad
            # the first row tells it in most cases; an embedding is large
            if (gradient.dim() and bool(gradient[:1].any())) or bool(gradient.any()):
                return True
            looked += 1
            if looked >= most:
                return False
    return False

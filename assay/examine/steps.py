"""Every optimizer step of a process, seen through torch's own hooks --> numbers of a Batch. Nothing is changed.

The weights are those that an optimizer holds, and those that a graph reaches and no optimizer does.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from assay.examine.directions import remembers
from assay.examine.guard import Guard
from assay.examine.weights import Weights, has_numbers

CLOSELY = 6  # first steps of an optimizer that are all looked at
LEFT_OUT = 3  # steps of an optimizer before it is asked what nobody holds: others may step later
MOST_OPTIMIZERS = 32  # that are looked at, of those that are alive
MOST_NODES = 100_000  # of a graph that are walked through


@dataclass(eq=False)
class _Seen:
    """What is known of one optimizer."""

    optimizer: weakref.ref[Any]
    steps: int = 0
    without: int = 0  # steps in a row before which no tensor had a gradient, be it of zeros
    is_reached: bool = False  # it holds what the observed graph is made of
    weights: Weights | None = None  # of the step in progress, where it is looked at
    last: tuple[int, Weights] | None = None
    numbers: dict[str, Any] = field(default_factory=dict)


class OptimizerSteps:
    """`took_step` is called after each step that is looked at, with numbers and settings of a Batch."""

    def __init__(self, took_step: Callable[[dict[str, Any], bool], None], failed: Callable[[Exception], None]) -> None:
        self._took_step = took_step
        self._guard = Guard(self._stop)
        self._failed = failed
        self._seen: dict[int, _Seen] = {}
        self._reached: dict[int, weakref.ref[Tensor]] = {}  # parameters at the end of the graphs that were shown last
        self._policy: dict[int, weakref.ref[Tensor]] = {}  # of them, those below the log-probs
        self._stepped = False  # since a graph was shown
        self._handles = (register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after))

    def show_graph(self, tensor: Tensor, *, is_policy: bool) -> None:
        """What the loss, or the policy's log-probs in it, are made of; earlier graphs may be of another run of this
        process. A loss may be made of more than a policy, and of what is to make it larger (a dual variable)."""
        if self._stepped:
            self._stepped = False
            self._reached.clear()
            self._policy.clear()
        nothing: dict[int, weakref.ref[Tensor]] = {}
        found = self._guard.attempt(lambda: parameters_below(tensor), nothing)
        self._reached |= found
        if is_policy:
            self._policy |= found

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _stop(self, error: Exception) -> None:
        self.close()
        self._failed(error)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        is_whole = not _is_within(optimizer, sys._getframe(1))
        has_closure = any(callable(given) for given in (*args[1:], *kwargs.values()))  # its gradients are to come
        if is_whole:
            self._guard.attempt(lambda: self._measure(optimizer, has_closure=has_closure), None)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped = True
        if not _is_within(optimizer, sys._getframe(1)):
            self._guard.attempt(lambda: self._compare(optimizer), None)

    def _measure(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        seen = self._seen_of(optimizer)
        if seen is None:
            return
        seen.steps += 1
        seen.weights = None
        held = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
        held = [weight for weight in held if type(weight) in (Tensor, nn.Parameter)]  # not a part of a sharded one
        if not held or has_closure or _is_distributed():
            return
        own = set(map(id, held))
        for other in list(self._seen.values()):
            if other is not seen and other.last is not None and other.last[1].shares(own):
                other.last = None
        seen.without = 0 if any(weight.grad is not None for weight in held) else seen.without + 1
        seen.is_reached = _holds(held, self._reached)
        if seen.steps > CLOSELY and seen.steps & (seen.steps - 1):
            return
        if not all(map(_is_finite, held)):  # such a step may be left out
            seen.last = None
            return
        if seen.steps > LEFT_OUT:
            held = [*held, *self._left_out(held)]
        pulled = [weight for weight in held if has_numbers(weight.grad)]  # an adapter's half is not, at first
        groups = optimizer.param_groups
        fresh = seen.steps == 1 and not remembers(optimizer) and self._has_direction(seen, held, groups)
        seen.weights = Weights(pulled or held, fresh=fresh, groups=groups)
        rates = [float(group.get("lr", 0.0)) for group in groups]
        seen.numbers = {"learning_rate": max(rates, default=0.0), "steps_without_gradient": self._without(seen)}
        if seen.last is not None and seen.last[0] == seen.steps - 1:
            seen.numbers["moved_between"] = seen.weights.changed_since(seen.last[1])
        seen.last = None

    def _compare(self, optimizer: Optimizer) -> None:
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.weights is None:
            return
        weights, seen.weights = seen.weights, None
        moved = weights.after()
        climbs = any(group.get("maximize") for group in optimizer.param_groups)
        if "tensors_judged" not in moved:  # the step follows earlier gradients too
            moved.pop("descent", None)
        if seen.steps < CLOSELY:
            seen.last = (seen.steps, weights)
        self._took_step({**seen.numbers, **moved}, climbs)

    def _seen_of(self, optimizer: Optimizer) -> _Seen | None:
        """None of the newest, where there are very many."""
        key, seen = id(optimizer), self._seen
        if key not in seen and len(seen) < MOST_OPTIMIZERS:
            seen[key] = _Seen(weakref.ref(optimizer, lambda _: seen.pop(key, None)))
        return seen.get(key)

    def _has_direction(self, seen: _Seen, held: Sequence[Tensor], groups: Sequence[dict[str, Any]]) -> bool:
        """Whether it is known where the step should go: a group of something else than a policy may climb."""
        climb = {bool(group.get("maximize")) for group in groups}
        if climb == {False}:
            return seen.is_reached or not self._reached
        return climb == {True} and _holds(held, self._policy)

    def _without(self, seen: _Seen) -> int:
        """Steps without any gradient; 0 where another optimizer has those of what was observed."""
        others = [other for other in self._seen.values() if other is not seen and other.steps and not other.without]
        return 0 if any(other.is_reached or not self._reached for other in others) else seen.without

    def _left_out(self, held: Sequence[Tensor]) -> list[Tensor]:
        """Parameters that a graph reaches, that have a gradient, and that no optimizer of the process holds: neither
        them nor a copy that gets their gradients, alone or with others in one tensor."""
        own = set(map(id, held))
        reached = [weight for ref in self._reached.values() if (weight := ref()) is not None]
        left = [weight for weight in reached if id(weight) not in own and weight.grad is not None]
        if left:
            others = held_by_optimizers()
            known = set(map(id, reached))
            fed = [weight.numel() for weight in held if id(weight) not in known and weight.grad is not None]
            left = [weight for weight in left if id(weight) not in others and weight.numel() > max(fed, default=0)]
            left = [weight for weight in left if not any(_is_copy(other, weight) for other in others.values())]
        return left


def _is_within(optimizer: Optimizer, call: FrameType) -> bool:
    """Whether a step of this optimizer is in progress around this one: a subclass may call that of its parent."""
    outer = call.f_back
    while outer is not None:
        if outer.f_code is call.f_code and outer.f_locals.get("self") is optimizer:
            return True
        outer = outer.f_back
    return False


def _is_copy(other: Tensor, weight: Tensor) -> bool:
    return other.shape == weight.shape and bool((other.detach().to(weight) == weight).all())


def _is_distributed() -> bool:
    """Several processes: this one may hold a part of the weights, or of their gradients."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _is_finite(weight: Tensor) -> bool:
    gradient = weight.grad
    if gradient is None:
        return True
    return bool((gradient.coalesce().values() if gradient.is_sparse else gradient).isfinite().all())


def _holds(held: Sequence[Tensor], reached: dict[int, weakref.ref[Tensor]]) -> bool:
    return any(id(weight) in reached and reached[id(weight)]() is weight for weight in held)


def held_by_optimizers() -> dict[int, Tensor]:
    """By id: what the optimizers of the process hold, also of those that have not stepped yet. It takes a while."""
    optimizers = [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    return {id(weight): weight for group in groups for weight in group["params"]}


def parameters_below(tensor: Tensor) -> dict[int, weakref.ref[Tensor]]:
    """Of the graph of a tensor: the parameters at its ends, by id."""
    found: dict[int, weakref.ref[Tensor]] = {}
    waiting: list[Any] = [tensor.grad_fn]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        weight = getattr(node, "variable", None)
        if isinstance(weight, nn.Parameter):
            found[id(weight)] = weakref.ref(weight)
        waiting += [other for other, _ in node.next_functions]
    return found

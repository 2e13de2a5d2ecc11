"""Every optimizer step of a process, seen through torch's own hooks --> numbers of a Batch. Nothing is changed.

The weights are those that an optimizer holds, and those that a graph reaches and no optimizer does.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
MOST_NODES = 100_000  # of a graph that are walked through


@dataclass(eq=False)
class _Seen:
    """What is known of one optimizer."""

    optimizer: weakref.ref[Any]
    steps: int = 0
    within: int = 0  # calls of step() in progress: a subclass may call that of its parent
    without: int = 0  # steps in a row before which no tensor had a gradient, be it of zeros
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
        self._stepped = False  # since a graph was shown
        self._handles = (register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after))

    def show_graph(self, tensor: Tensor) -> None:
        """What the loss, or the log-probs in it, are made of; earlier graphs may be of another run of this process."""
        if self._stepped:
            self._stepped = False
            self._reached.clear()
        self._guard.attempt(lambda: self._reached.update(parameters_below(tensor)), None)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _stop(self, error: Exception) -> None:
        self.close()
        self._failed(error)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._guard.attempt(lambda: self._measure(optimizer), None)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped = True
        self._guard.attempt(lambda: self._compare(optimizer), None)

    def _measure(self, optimizer: Optimizer) -> None:
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.optimizer() is not optimizer:
            seen = self._seen[id(optimizer)] = _Seen(weakref.ref(optimizer))
        seen.within += 1
        if seen.within > 1:
            return
        held = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
        seen.steps += 1
        seen.without = 0 if any(weight.grad is not None for weight in held) else seen.without + 1
        seen.weights = None
        if seen.steps > CLOSELY and seen.steps & (seen.steps - 1):
            return
        if seen.steps > LEFT_OUT:
            held = [*held, *self._left_out(held)]
        pulled = [weight for weight in held if has_numbers(weight.grad)]  # an adapter's half is not, at first
        seen.weights = Weights(pulled or held, fresh=not remembers(optimizer))
        rates = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
        seen.numbers = {"learning_rate": max(rates, default=0.0), "steps_without_gradient": seen.without}
        if seen.last is not None and seen.last[0] == seen.steps - 1:
            seen.numbers["moved_between"] = seen.weights.changed_since(seen.last[1])
        seen.last = None

    def _compare(self, optimizer: Optimizer) -> None:
        seen = self._seen[id(optimizer)]
        seen.within -= 1
        if seen.within:
            return
        weights, seen.weights = seen.weights, None
        if weights is None:
            return
        moved = weights.after()
        climbs = any(group.get("maximize") for group in optimizer.param_groups)
        if "tensors_judged" not in moved:  # the step follows earlier gradients too
            moved.pop("descent", None)
        if seen.steps < CLOSELY:
            seen.last = (seen.steps, weights)
        self._took_step({**seen.numbers, **moved}, climbs)

    def _left_out(self, held: Sequence[Tensor]) -> list[Tensor]:
        """Parameters that a graph reaches, that have a gradient, and that no optimizer of the process holds."""
        own = set(map(id, held))
        reached = [weight for ref in self._reached.values() if (weight := ref()) is not None]
        left = [weight for weight in reached if id(weight) not in own and weight.grad is not None]
        if left:
            others = held_by_optimizers()
            left = [weight for weight in left if id(weight) not in others]
        return left


def held_by_optimizers() -> set[int]:
    """Ids of what the optimizers of the process hold, also of those that have not stepped yet. It takes a while."""
    optimizers = [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    return {id(weight) for group in groups for weight in group["params"]}


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

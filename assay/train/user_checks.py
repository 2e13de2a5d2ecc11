"""Checks of what users hand to GRPOTrainer. A refusal is one sentence that names the value and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from assay.grpo import REWARD_LIMIT


def numbers(values: Any, source: str) -> list[float | None]:
    """Rewards from Python: a list, array or tensor of numbers, None where a completion could not be scored.

    >>> numbers([1, True, None], "reward_fn")
    [1.0, 1.0, None]
    >>> numbers([0.5, float("nan")], "reward_fn")
    Traceback (most recent call last):
    ValueError: reward_fn: reward 1 is nan; it must be a finite number (or None if it could not be scored)
    """
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple):
        raise TypeError(f"{source}: {short(values)} is not a list, array or tensor of rewards, one for each completion")
    checked: list[float | None] = []
    for index, value in enumerate(values):
        reward = value.tolist() if hasattr(value, "tolist") else value  # a scalar of torch or numpy
        # the comparison refuses NaN, infinities, and what would overflow the std of its group
        if reward is not None and not (isinstance(reward, int | float) and abs(reward) <= REWARD_LIMIT):
            raise ValueError(
                f"{source}: reward {index} is {short(reward)}; it must be a finite number (or None if it could not be "
                "scored)"
            )
        checked.append(None if reward is None else float(reward))
    return checked


def short(value: object) -> str:
    """A value inside a sentence.

    >>> short(None), short("x" * 99)
    ('None', "the str 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...")
    """
    text = repr(value)
    kind = "" if value is None or isinstance(value, int | float) else f"the {type(value).__name__} "
    return kind + (text if len(text) <= 40 else f"{text[:38]}...")


def check_problems(problems: Any, rows: int, size: int) -> None:
    names = list(problems.tolist() if isinstance(problems, Tensor) else problems)
    if len(names) != rows:
        raise ValueError(f"problems names {len(names)} problems for {rows} rewards; give the problem of each reward")
    for first in range(0, rows, size):
        for row in range(first, first + size):
            if names[row] != names[first]:
                raise ValueError(
                    f"group {first // size} (rewards {first} to {first + size - 1}) mixes problems {names[first]!r} "
                    f"and {names[row]!r}, but only answers to one problem can be compared; were the prompts repeated "
                    "with repeat instead of repeat_interleave?"
                )


_WHY_FIXED = {
    "old_log_probs": "the ratio would push the old policy too, and at equal weights its gradient would be 0",
    "advantages": "the policy would learn to change its own rewards",
    "ref_log_probs": "the reference must stay where it is",
}


def check_tensors(log_probs: Tensor, fixed: Mapping[str, Tensor | None], mask: Tensor | None) -> None:
    """Checks types, gradients and shapes: refuses what torch would silently broadcast or differentiate."""
    tensors = {"log_probs": log_probs, **fixed, "mask": mask}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) and (tensor is not None or name not in ("ref_log_probs", "mask")):
            raise TypeError(f"{name} is {short(tensor)}; pass a tensor")
    for name, why in _WHY_FIXED.items():
        tensor = fixed[name]
        if tensor is not None and tensor.requires_grad:
            raise ValueError(f"{name} carries gradient, so that {why}; call .detach() on it")
    if torch.is_grad_enabled() and not log_probs.requires_grad:
        raise ValueError(
            "log_probs carries no gradient, so that nothing would be learned: compute it from the model outside of "
            "torch.no_grad() and without .detach(); for the number alone, call this under torch.no_grad()"
        )
    shape = list(log_probs.shape)
    if len(shape) not in (1, 2) or not log_probs.numel():
        raise ValueError(f"log_probs has shape {shape}; expected [B, T] (per token) or [N] (per sequence)")
    for name, tensor in tensors.items():
        allowed = [shape[:1], shape] if name == "advantages" else [shape]
        if tensor is not None and list(tensor.shape) not in allowed:
            wanted = " or ".join(map(str, allowed if len(shape) == 2 else [shape]))
            raise ValueError(
                f"{name} has shape {list(tensor.shape)} beside log_probs of shape {shape}; wanted is {wanted}: any "
                "other shape would be broadcast into a loss over pairs that do not belong together"
            )
    if mask is not None and not ((mask == 0) | (mask == 1)).all():
        raise ValueError("mask holds values other than 0 and 1; weights belong into the advantages")

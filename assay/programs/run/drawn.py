"""From what a token was drawn: the pass, the temperature, and what was cut away before."""

from __future__ import annotations

from typing import Any

import torch

from assay.programs.run.origins import LOGITS, LOGPROBS, PROBABILITIES, Origins
from assay.programs.run.watched import Sampling, numbers_of
from assay.programs.value import Value

_PASSED = frozenset(
    "softmax log_softmax cast index squeeze unsqueeze view reshape flatten clone detach contiguous "
    "element attribute exp changed "
    "categorical sample expand".split()
)
_CUTS = frozenset("topk sort masked_fill where scatter setitem gather cumsum".split())


def sampling_of(value: Value, origins: Origins) -> Sampling:
    temperature: float | None = 1.0
    cuts: list[str] = []
    current: Value | None = value.arguments.get("input")
    while current is not None and current.op != "forward":
        if current.op in ("div", "mul"):
            factor = _number(current.arguments.get("other"))
            if factor is None or factor <= 0:
                temperature = None
            elif temperature is not None and origins.kind(current) in (LOGITS, None):
                temperature *= factor if current.op == "div" else 1 / factor
            elif origins.kind(current) != PROBABILITIES:  # dividing probabilities by their sum changes nothing
                temperature = None
        elif current.op in _CUTS:
            cuts.append(current.op)
        elif current.op not in _PASSED:
            is_known = origins.kind(current) in (LOGITS, LOGPROBS, PROBABILITIES)
            temperature = temperature if is_known and current.op in ("add", "clamp") else None
        current = _before(current)
    forward = origins.forward_of(value)
    return Sampling(value, 0 if forward is None else forward.version, forward, temperature, tuple(cuts))


def random_state(tensor: Any, generator: Any) -> int | None:
    """A number for the state of the random numbers that a draw on the tensor's device will use."""
    if generator is None and tensor is not None and tensor.is_cuda:
        generator = torch.cuda.default_generators[tensor.device.index or 0]
    generator = torch.default_generator if generator is None else generator
    with torch._C.DisableTorchFunction():
        return hash(generator.get_state().numpy().tobytes())


def _before(value: Value) -> Value | None:
    for name in ("input", "logits", "probs"):
        if name in value.arguments:
            return value.arguments[name]
    return None


def _number(value: Value | None) -> float | None:
    if value is None:
        return None
    if isinstance(value.constant, (int, float)):
        return float(value.constant)
    numbers = numbers_of(value)
    return float(numbers.reshape(-1)[0]) if numbers is not None and numbers.size == 1 else None

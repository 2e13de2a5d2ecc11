"""What is asked of TRL's model beside its update: what it was given, the same log-probs again, how its weights moved.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.adapters.trl_batch import Piece, Rollouts
from assay.policy.plain import asked_plainly, logprobs_of, plain_logits

MOST_ROWS = 32  # first rows of an update that are asked plainly, one forward pass each
MOST_NUMBERS = 50_000_000  # trainable numbers that are copied to see them move; of more, some of each tensor
OF_EACH = 64  # numbers of a tensor, those with the largest gradients


def trl_trainer() -> Any:
    """The class, imported when it is asked for: TRL is optional."""
    from trl import GRPOTrainer

    return GRPOTrainer


def inputs_of_trl() -> dict[str, Any] | None:
    """The inputs as TRL's own loss reads them, found on the stack: a subclass may hand on others than it got."""
    code = inspect.unwrap(trl_trainer()._compute_loss).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    inputs = None if frame is None else frame.f_locals.get("inputs")
    return dict(inputs) if isinstance(inputs, dict) else None


@contextmanager
def watched(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields what is filled in by a forward pass: its tensors by name, and how many dropout modules were active."""
    given: dict[str, Any] = {}

    def note(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen = {**dict(zip(("input_ids", "attention_mask", "position_ids"), args, strict=False)), **named}
        for name in ("input_ids", "attention_mask", "position_ids"):
            value = seen.get(name)
            if isinstance(value, Tensor) and value.dim() == 2:
                before = given.get(name)  # a pass may be cut into pieces
                is_piece = isinstance(before, Tensor) and before.shape[1] == value.shape[1]
                given[name] = torch.cat([given[name], value.detach()]) if is_piece else value.detach()
        given["dropout_modules"] = sum(
            isinstance(one, nn.Dropout) and one.training and one.p > 0 for one in module.modules()
        ) + _attention_dropout(module)

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield given
    finally:
        handle.remove()


def _attention_dropout(model: nn.Module) -> int:
    """Attention layers keep their probability as a number, not as a module."""
    chances = [getattr(one, "attention_dropout", 0.0) for one in model.modules() if one.training]
    return sum(isinstance(chance, float) and chance > 0 for chance in chances)


def asked_again(
    trainer: Any, rollouts: Rollouts, pieces: Sequence[Piece], repeat: Callable[..., Any] | None
) -> dict[str, dict[int, Tensor]]:
    """Log-probs by row, before the optimizer moves the weights. `repeat` is TRL's own scoring pass."""
    answers: dict[str, dict[int, Tensor]] = {}
    if repeat is not None:
        answers["scored_again"] = {}
        for piece in pieces:
            device = piece.new_BT.device
            with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                again_BT = repeat(**piece.scoring)[0]
            answers["scored_again"] |= dict(zip(piece.rows.tolist(), again_BT.detach(), strict=True))
    if trainer._is_vlm:
        return answers
    rows = sorted(int(row) for piece in pieces for row in piece.rows)[:MOST_ROWS]
    model, temperature = trainer.accelerator.unwrap_model(trainer.model), trainer_temperature(trainer)
    answers["plain_logprobs"], answers["plain_raw_logprobs"] = {}, {}
    for row in rows:
        both = _plainly(model, rollouts.prompts[row], rollouts.sampled[row], (temperature, 1.0))
        answers["plain_logprobs"][row], answers["plain_raw_logprobs"][row] = both
    with ExitStack() as stack:
        reference = _reference(trainer, model, stack)
        if reference is not None:
            answers["plain_ref_logprobs"] = {
                row: _plainly(reference, rollouts.prompts[row], rollouts.sampled[row], (temperature,))[0]
                for row in rows
            }
    return answers


def trainer_temperature(trainer: Any) -> float:
    """At which it samples."""
    config = None if trainer.use_vllm else getattr(trainer, "generation_config", None)
    return float((trainer.args if config is None else config).temperature)


def _plainly(
    model: nn.Module, prompt: Sequence[int], tokens: Sequence[int], temperatures: Sequence[float]
) -> list[Tensor]:
    if not tokens:
        return [torch.zeros(0) for _ in temperatures]
    with asked_plainly(model):
        logits_TV = plain_logits(model, prompt, tokens)
        return [logprobs_of(logits_TV, tokens, temperature) for temperature in temperatures]


def _reference(trainer: Any, model: Any, stack: ExitStack) -> Any:
    """The model that TRL compares with; None without one, and where an adapter of its own is the reference."""
    if not trainer.beta:
        return None
    if trainer.ref_model is not None:
        return trainer.accelerator.unwrap_model(trainer.ref_model)
    adapters = getattr(model, "peft_config", None)
    if adapters is None or "ref" in adapters:
        return None
    stack.enter_context(model.disable_adapter())
    return model


class Weights:
    """The trainable tensors before an optimizer step, and after `compare` how they moved."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._whole = sum(weight.numel() for weight in self._weights) <= MOST_NUMBERS
        gradients = [weight.grad for weight in self._weights]
        self._without = sum(one is None or not bool(one.any()) for one in gradients)
        self._places = [None if self._whole or one is None else _largest(one) for one in gradients]
        self._before = [numbers.clone() for numbers in self._looked_at()]
        self._numbers: dict[str, float | int] = {}

    def _looked_at(self) -> list[Tensor]:
        flat = [weight.detach().flatten() for weight in self._weights]
        if self._whole:
            return flat
        pairs = zip(flat, self._places, strict=True)
        return [one[:OF_EACH] if places is None else one[places] for one, places in pairs]

    def compare(self) -> None:
        now = self._looked_at()
        changed = [int((one != before).sum()) for one, before in zip(now, self._before, strict=True)]
        self._numbers = {
            "tensors": len(now),
            "tensors_changed": sum(count > 0 for count in changed),
            "tensors_without_gradient": self._without,
        }
        if self._whole:
            moved = sum(
                float((one - before).double().square().sum()) for one, before in zip(now, self._before, strict=True)
            )
            self._numbers["update_norm"] = moved**0.5
            self._numbers["numbers_changed_share"] = sum(changed) / max(sum(one.numel() for one in now), 1)

    def numbers(self) -> dict[str, float | int]:
        return dict(self._numbers)


def _largest(gradient: Tensor) -> Tensor:
    flat = gradient.detach().flatten().abs()
    return flat.topk(min(OF_EACH, flat.numel())).indices

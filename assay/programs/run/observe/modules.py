"""Modules and what they are given and return, as far as it can be told from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.programs.run.watched import Model, Sight, Update
from assay.programs.value import Value

_INPUTS = ("input_ids", "ids", "inputs", "input", "x", "idx", "tokens")
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def catch(caught: dict[int, Tensor], key: int, gradient: Tensor) -> None:
    copy = gradient.detach().to(torch.float64, copy=True)
    caught[key] = caught[key] + copy if key in caught else copy


def active_dropout(module: nn.Module) -> int:
    layers = [one for one in module.modules() if one.training]
    recurrent = sum(isinstance(one, nn.RNNBase) and one.dropout > 0 and one.num_layers > 1 for one in layers)
    return recurrent + sum(isinstance(one, DROPOUT) and one.p > 0 for one in layers)


def models_of(update: Update) -> set[int]:
    """The models whose log-probs the loss is made of."""
    return {piece.forward.model for one in update.backwards if one.roles is not None for piece in one.roles.pieces}


def is_finite(number: float | None) -> bool:
    return number is not None and number != float("inf")


def stated_config(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the script asked for: by keyword, or in a configuration of its own."""
    config = kwargs.get("generation_config")
    own = config is not None and config is not getattr(model, "generation_config", None)
    stated = config.to_dict() if config is not None and own and hasattr(config, "to_dict") else {}
    stated |= {name: one for name, one in kwargs.items() if is_plain(one)}
    return {name: one for name, one in stated.items() if one is not None and is_plain(one)}


def adapter_is_off(module: nn.Module) -> bool:
    return any(getattr(one, "disable_adapters", False) is True for one in module.modules())


def ids_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The integer tensor that a model is given: by the usual names, else the first."""
    candidates = [kwargs.get(name) for name in _INPUTS] + list(args)
    return next((one for one in candidates if isinstance(one, Tensor) and are_ids(one)), None)


def are_ids(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32) and tensor.dim() in (1, 2)


def looks_like_mask(value: Value, ids: Tensor | None) -> bool:
    seen = value.thing
    if not isinstance(seen, Sight) or ids is None or seen.shape != tuple(ids.shape) or seen.numbers is None:
        return False
    return bool(((seen.numbers == 0) | (seen.numbers == 1)).all())


def tensors_of(output: Any) -> list[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        return [("", output)]
    if hasattr(output, "items"):
        return [(str(name), one) for name, one in output.items() if isinstance(one, Tensor)]
    if isinstance(output, (tuple, list)):
        return [(str(number), one) for number, one in enumerate(output) if isinstance(one, Tensor)]
    return (
        [(name, one) for name, one in vars(output).items() if isinstance(one, Tensor)]
        if hasattr(output, "__dict__")
        else []
    )


def ids_in(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return tuple(one for one in value if isinstance(one, int)) if isinstance(value, (list, tuple)) else ()


def is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, bool, str)) or (
        isinstance(value, (list, tuple)) and all(isinstance(one, int) for one in value)
    )


def described(module: nn.Module, number: int) -> Model:
    parameters = list(module.parameters())
    config = getattr(module, "config", None)
    return Model(
        number=number,
        name=type(module).__name__,
        parameters=sum(one.numel() for one in parameters),
        trainable=sum(one.requires_grad for one in parameters),
        dtypes=tuple(sorted({str(one.dtype).removeprefix("torch.") for one in parameters})),
        has_adapter=hasattr(module, "disable_adapter"),
        eos_ids=ids_in(getattr(config, "eos_token_id", None)),
        pad_id=next(iter(ids_in(getattr(config, "pad_token_id", None))), None),
        vocabulary=getattr(config, "vocab_size", None),
        can_cache=hasattr(config, "use_cache"),
        dropout=max((float(one.p) for one in module.modules() if isinstance(one, DROPOUT)), default=0.0),
    )

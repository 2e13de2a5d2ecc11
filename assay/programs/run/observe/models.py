"""The models of a script: which module is which, with which weights; what they are given and what they return."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from assay.programs.graph import Value
from assay.programs.run.sight import Sight
from assay.programs.run.watched import Model, Update, WatchedRun
from assay.programs.run.weights import first_and_last, sums_of

_INPUTS = ("input_ids", "ids", "inputs", "input", "x", "idx", "tokens")
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class Models:
    """Modules are not held: a script may let one go."""

    def __init__(self, run: WatchedRun) -> None:
        self.run = run
        self._models: dict[int, tuple[weakref.ref[nn.Module], Model]] = {}
        self._summed: dict[int, tuple[int, tuple[float, ...]]] = {}
        self._few: dict[int, tuple[weakref.ref[nn.Module], int, list[weakref.ref[Tensor]]]] = {}

    def of(self, module: nn.Module) -> Model:
        parameters = self._some(module)
        # a wrapper and what it wraps are one model
        key = id(parameters[0]) if parameters else id(module)
        known = self._models.get(key)
        if known is not None and known[0]() is not None:
            return known[1]
        model = described(module, len(self.run.models))
        self._models[key] = (weakref.ref(module), model)
        self.run.models.append(model)
        return model

    def sums(self, module: nn.Module) -> tuple[float, ...]:
        """Of its weights; computed again when they were changed."""
        parameters = self._some(module)
        if not parameters:
            return ()
        key = id(parameters[0])
        changes = parameters[0]._version + parameters[-1]._version
        known = self._summed.get(key)
        if known is None or known[0] != changes:
            known = self._summed[key] = (changes, sums_of(parameters))
        return known[1]

    def _some(self, module: nn.Module) -> list[Tensor]:
        """Its first and last parameters. A large module has hundreds, and a loop asks at every token."""
        known = self._few.get(id(module))
        if known is None or known[0]() is not module or known[1] != len(self.run.updates):
            refs = [weakref.ref(one) for one in first_and_last(list(module.parameters()))]
            known = self._few[id(module)] = (weakref.ref(module), len(self.run.updates), refs)
        return [one for ref in known[2] if (one := ref()) is not None]

    def module(self, number: int) -> nn.Module | None:
        return next((ref() for ref, model in self._models.values() if model.number == number), None)

    def holding(self, parameters: Iterable[Tensor]) -> list[Model]:
        """Those that one of the parameters belongs to."""
        held = {id(one) for one in parameters}
        models = [(ref(), model) for ref, model in self._models.values()]
        return [
            model
            for module, model in models
            if module is not None and any(id(one) in held for one in module.parameters())
        ]


def catch(caught: dict[int, Tensor], key: int, gradient: Tensor) -> None:
    copy = gradient.detach().to(torch.float64, copy=True)
    caught[key] = caught[key] + copy if key in caught else copy


def active_dropout(module: nn.Module) -> int:
    layers = [one for one in module.modules() if one.training]
    recurrent = sum(isinstance(one, nn.RNNBase) and one.dropout > 0 and one.num_layers > 1 for one in layers)
    return recurrent + sum(isinstance(one, DROPOUT) and one.p > 0 for one in layers)


def models_of(update: Update) -> set[int]:
    """The models whose log-probs the loss is made of."""
    return {piece.forward.model for piece in update.pieces}


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
        trainable=sum(one.requires_grad for one in parameters),
        dtypes=tuple(sorted({str(one.dtype).removeprefix("torch.") for one in parameters})),
        has_adapter=hasattr(module, "disable_adapter"),
        eos_ids=ids_in(getattr(config, "eos_token_id", None)),
        vocabulary=getattr(config, "vocab_size", None),
        can_cache=hasattr(config, "use_cache"),
    )


def random_state(tensor: Any, generator: Any) -> int | None:
    """A number for the state of the random numbers that a draw on the tensor's device will use."""
    if generator is None and tensor is not None and tensor.is_cuda:
        generator = torch.cuda.default_generators[tensor.device.index or 0]
    generator = torch.default_generator if generator is None else generator
    with torch._C.DisableTorchFunction():
        return hash(generator.get_state().numpy().tobytes())

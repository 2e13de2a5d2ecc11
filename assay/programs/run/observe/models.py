"""The models of a script: which module is which, with which weights; what they are given and what they return."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.programs.run.rollouts import token_ids
from assay.programs.run.watched import Model, WatchedRun

_INPUTS = ("input_ids", "ids", "inputs", "input", "x", "idx", "tokens")
TENSORS, EACH = 8, 4096  # by which weights are told apart: tensors, and first numbers of each


class Models:
    """Modules are not held: a script may let one go."""

    def __init__(self, run: WatchedRun) -> None:
        self.run = run
        self._models: dict[int, tuple[weakref.ref[nn.Module], Model]] = {}
        self.steps: Counter[int] = Counter()  # of optimizers that hold a parameter, by its id
        self._firsts: dict[int, weakref.ref[Tensor]] = {}  # the first parameter of each
        self._looked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._whole: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._owners: dict[int, tuple[weakref.ref[Tensor], weakref.ref[nn.Module]]] = {}
        self._loose: list[nn.Module] = []
        self._lent: dict[int, dict[int, weakref.ref[Tensor]]] = {}  # to each model, by id
        self._summed: dict[int, tuple[int, tuple[float, ...]]] = {}
        self._few: dict[int, tuple[weakref.ref[nn.Module], int, list[weakref.ref[Tensor]]]] = {}

    def own(self, module: nn.Module) -> None:
        """Its parameters are known as its own, unless an outer module has them."""
        if module not in self._looked:
            self._looked.add(module)
            for parameter in module.parameters():
                known = self._owners.get(id(parameter))
                is_new = known is None or known[0]() is not parameter
                if is_new or (known is not None and _is_part(known[1]()) and not _is_part(module)):
                    self._owners[id(parameter)] = (weakref.ref(parameter), weakref.ref(module))

    def of_parameter(self, tensor: Tensor) -> Model:
        """The model that was called with it; a tensor that no module has is a model by itself."""
        known = self._owners.get(id(tensor))
        owner = known[1]() if known is not None and known[0]() is tensor else None
        if owner is None:
            owner = _Loose(tensor)
            self._loose.append(owner)
            self._owners[id(tensor)] = (weakref.ref(tensor), weakref.ref(owner))
        return self.of(owner)

    def of(self, module: nn.Module) -> Model:
        parameters = self._some(module)
        # a wrapper and what it wraps are one model
        key = id(parameters[0]) if parameters else id(module)
        known = self._models.get(key) or self._sharing(parameters)
        if known is not None and (was := known[0]()) is not None:
            if _is_part(was) and not _is_part(module):  # a parameter or a layer that was seen before its model
                described = replace(_describe(module, known[1].number), version=known[1].version)
                for part in fields(described):
                    setattr(known[1], part.name, getattr(described, part.name))
                self._models[key] = (weakref.ref(module), known[1])
            return known[1]
        model = _describe(module, len(self.run.models))
        self._models[key] = (weakref.ref(module), model)
        if parameters:
            self._firsts[key] = weakref.ref(parameters[0])
        self.run.models.append(model)
        return model

    def absorb(self, module: nn.Module) -> dict[int, int]:
        """Layers of a model that were called by themselves before: their numbers, and that of the model."""
        if module in self._whole:
            return {}
        self._whole.add(module)
        self.own(module)
        mine = {id(parameter) for parameter in module.parameters()}
        number = self.of(module).number
        parts = [(ref(), model) for ref, model in self._models.values()]
        return {
            model.number: number
            for part, model in parts
            if part is not None and _is_part(part) and all(id(parameter) in mine for parameter in part.parameters())
        }

    def _sharing(self, parameters: Sequence[Tensor]) -> tuple[weakref.ref[nn.Module], Model] | None:
        """The model whose weights lie at the same place in memory: those of a state_dict() without copies do."""
        for key, first in self._firsts.items() if parameters else ():
            own = first()
            if own is not None and own is not parameters[0] and is_same_memory(own, parameters[0]):
                return self._models.get(key)
        return None

    def sharing(self, tensor: Tensor) -> Tensor | None:
        """The parameter of a known model that lies at the same place in memory as this tensor."""
        for parameter, _ in self._owners.values():
            own = parameter()
            if own is not None and own is not tensor and is_same_memory(own, tensor):
                return own
        return None

    def sums(self, module: nn.Module) -> tuple[float, ...]:
        """Of its weights; computed again when they were changed."""
        parameters = self._some(module)
        if not parameters:
            return ()
        key = id(parameters[0])
        changes = parameters[0]._version + parameters[-1]._version
        known = self._summed.get(key)
        if known is None or known[0] != changes:
            known = self._summed[key] = (changes, _sums(parameters))
        return known[1]

    def _some(self, module: nn.Module) -> list[Tensor]:
        """Its first and last parameters. A large module has hundreds, and a loop asks at every token."""
        known = self._few.get(id(module))
        is_known = known is not None and known[0]() is module and known[1] == len(self.run.updates)
        first = next(module.parameters(), None)  # functional_call() puts others in its place for a while
        if known is None or not is_known or (known[2] and known[2][0]() is not first):
            parameters: list[Tensor] = list(module.parameters())
            half = TENSORS // 2
            few = parameters if len(parameters) <= TENSORS else [*parameters[:half], *parameters[-half:]]
            refs = [weakref.ref(parameter) for parameter in few]
            known = self._few[id(module)] = (weakref.ref(module), len(self.run.updates), refs)
        return [parameter for ref in known[2] if (parameter := ref()) is not None]

    def module(self, number: int) -> nn.Module | None:
        return next((ref() for ref, model in self._models.values() if model.number == number), None)

    def lend(self, module: nn.Module) -> bool:
        """Whether functional_call() put other tensors in the place of its parameters: they are the model's for now."""
        lent = [tensor for tensor in module.parameters() if not isinstance(tensor, nn.Parameter)]
        if lent:
            self._lent[self.of(module).number] = {id(tensor): weakref.ref(tensor) for tensor in lent}
        return bool(lent)

    def holding(self, parameters: Iterable[Tensor]) -> list[Model]:
        """Those that one of the parameters belongs to."""
        held = {id(parameter): parameter for parameter in parameters}
        models = [(ref(), model) for ref, model in self._models.values()]
        found = []
        for module, model in models:
            lent = self._lent.get(model.number, {})
            is_lent = any(ref() is held.get(key) for key, ref in lent.items() if key in held)
            own = () if module is None else module.parameters()
            if is_lent or any(id(parameter) in held for parameter in own):
                found.append(model)
        return found


class _Loose(nn.Module):
    """A parameter without a module."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self._tensor = weakref.ref(tensor)

    def parameters(self, recurse: bool = True) -> Any:
        tensor = self._tensor()
        return iter(() if tensor is None else (tensor,))


def _is_part(module: nn.Module | None) -> bool:
    """A layer of torch or a parameter without a module; not a network that somebody wrote."""
    return isinstance(module, _Loose) or type(module).__module__.startswith("torch.nn.modules.")


def is_same_memory(one: Tensor, other: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return one.device == other.device and one.shape == other.shape and 0 != one.data_ptr() == other.data_ptr()


@torch.no_grad()
def _sums(parameters: Sequence[Tensor]) -> tuple[float, ...]:
    """A few sums that are the same for the same weights, and for no others in practice."""
    with torch._C.DisableTorchFunction():
        return tuple(float(parameter.detach().reshape(-1)[:EACH].double().sum()) for parameter in parameters)


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = [torch.linalg.vector_norm(gradient.float()) for gradient in gradients if not gradient.is_sparse]
    return float(sum(float(norm) ** 2 for norm in norms) ** 0.5)


def has_new_pair(parameters: Iterable[Tensor]) -> bool:
    """A low-rank pair starts with one factor of zeros, and the other then has a gradient of zeros."""
    return any(parameter.ndim == 2 and not parameter.detach().any() for parameter in parameters)


def stated_config(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the script asked for: by keyword, or in a configuration of its own."""
    config = kwargs.get("generation_config")
    own = config is not None and config is not getattr(model, "generation_config", None)
    stated = config.to_dict() if config is not None and own and hasattr(config, "to_dict") else {}
    return plain_settings(stated) | plain_settings(kwargs)


def adapter_is_off(module: nn.Module) -> bool:
    return any(getattr(part, "disable_adapters", False) is True for part in module.modules())


def ids_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The integer tensor that a model is given: by the usual names, else the first."""
    candidates = [kwargs.get(name) for name in _INPUTS] + list(args)
    tensors = [given for given in candidates if isinstance(given, Tensor)]
    return next((ids for ids in tensors if ids.dtype in (torch.int64, torch.int32) and ids.dim() in (1, 2)), None)


def tensors_of(output: Any) -> list[tuple[str, Tensor]]:
    """Of a model's output, each with its name or number."""
    if isinstance(output, Tensor):
        return [("", output)]
    if hasattr(output, "items"):
        parts = output.items()
    else:
        is_sequence = isinstance(output, (tuple, list))
        parts = enumerate(output) if is_sequence else getattr(output, "__dict__", {}).items()
    return [(str(name), part) for name, part in parts if isinstance(part, Tensor)]


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are a number, a text or a list of token ids."""
    return {name: setting for name, setting in settings.items() if _is_plain(setting)}


def _is_plain(setting: Any) -> bool:
    return isinstance(setting, (int, float, bool, str)) or (
        isinstance(setting, (list, tuple)) and all(isinstance(token, int) for token in setting)
    )


def _describe(module: nn.Module, number: int) -> Model:
    parameters = list(module.parameters())
    config = getattr(module, "config", None)
    return Model(
        number=number,
        name=type(module).__name__,
        trainable=sum(parameter.requires_grad for parameter in parameters),
        dtypes=tuple(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})),
        has_adapter=hasattr(module, "disable_adapter"),
        eos_ids=token_ids(getattr(config, "eos_token_id", None)),
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

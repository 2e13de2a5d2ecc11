"""The models of a script: which module is which, and with which weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor, nn

from assay.programs.run.observe.modules import described
from assay.programs.run.watched import Model, WatchedRun
from assay.programs.run.weights import first_and_last, sums_of


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
        """Of its weights; computed anew when they were changed."""
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

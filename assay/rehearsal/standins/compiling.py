"""Compilers: what would be compiled runs as it is written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage


def install(stage: Stage) -> None:
    stage.when_imported("torch", functools.partial(_torch, stage))


def _torch(stage: Stage, torch: ModuleType) -> None:
    module = torch.nn.Module

    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        if model is None:
            return functools.partial(compile, **kwargs)
        _say(stage)
        if isinstance(model, module):
            vars(model)["_orig_mod"] = model  # not a child: the names of its weights stay
        return model

    def compile_module(self: Any, *args: Any, **kwargs: Any) -> None:
        _say(stage)

    torch.compile, module.compile = compile, compile_module  # type: ignore[attr-defined]
    script, trace = torch.jit.script, torch.jit.trace
    torch.jit.script = _for_script(stage, script, lambda given, *args, **kwargs: given)
    torch.jit.trace = _for_script(stage, trace, lambda given, *args, **kwargs: given)


def _say(stage: Stage) -> None:
    stage.replaced("device", "torch.compile", "the model as it is written")


def _for_script(stage: Stage, real: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) if stage.is_asked_by_script() else real(*args, **kwargs)

    return call

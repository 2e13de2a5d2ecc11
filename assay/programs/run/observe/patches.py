"""Functions of torch and transformers that tell an observer when they are called; all are put back at the end.

Only what the script itself calls is told: what runs below such a call runs as it would without us.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import nn

from assay.programs.run.observe.guard import attempt
from assay.programs.run.observe.recorder import Recorder


class Watching(Protocol):
    """What an observer is told."""

    recorder: Recorder
    dropouts: int
    inside: tuple[Any, list[int]] | None

    def is_a_pass(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool: ...
    def passed(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, frame: Any
    ) -> None: ...
    def generating(self, model: Any, frame: Any) -> None: ...
    def generated(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, frame: Any) -> None: ...
    def generation_config(self, config: Any) -> None: ...
    def distributed(self, distribution: Any, kwargs: dict[str, Any], frame: Any) -> None: ...
    def asked(self, distribution: Any, kind: str, args: tuple[Any, ...], result: Any, frame: Any) -> None: ...
    def drawing(self, kind: str) -> None: ...
    def happened(self, kind: str, subject: Any, detail: Any, frame: Any) -> None: ...
    def stepping(self, optimizer: torch.optim.Optimizer, frame: Any) -> None: ...
    def stepped(self, optimizer: torch.optim.Optimizer, frame: Any) -> None: ...


class Patches:
    """What was replaced, and by what it is put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, bool]] = []
        self._handles: list[Any] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        inherited = isinstance(owner, type) and name not in vars(owner)
        original = getattr(owner, name)
        self._replaced.append((owner, name, original, inherited))
        setattr(owner, name, make(original))

    def keep(self, handle: Any) -> None:
        self._handles.append(handle)

    def undo(self) -> None:
        for owner, name, original, inherited in reversed(self._replaced):
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        for handle in self._handles:
            handle.remove()
        self._replaced, self._handles = [], []


def patch_torch(patches: Patches, observer: Watching) -> None:
    recorder = observer.recorder
    patches.replace(nn.Module, "__call__", lambda original: _pass(original, observer))
    categorical = torch.distributions.Categorical
    patches.replace(categorical, "__init__", lambda original: _distribution(original, observer))
    for name in ("sample", "log_prob", "entropy"):
        patches.replace(categorical, name, functools.partial(_asked, kind=name, observer=observer))
    for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            patches.replace(owner, name, functools.partial(_told, kind="clip_grad_norm", observer=observer))
    told: tuple[tuple[Any, str, str], ...] = (
        (torch.optim.Optimizer, "zero_grad", "zero_grad"),
        (nn.Module, "zero_grad", "zero_grad"),
        (nn.Module, "train", "train"),
        (nn.Module, "load_state_dict", "load_state_dict"),
        (torch, "manual_seed", "manual_seed"),
        (torch.optim.lr_scheduler.LRScheduler, "step", "scheduler"),
        (torch.nn.parallel.DistributedDataParallel, "__init__", "ddp"),
    )
    for owner, name, kind in told:
        patches.replace(owner, name, functools.partial(_told, kind=kind, observer=observer))
    for name in ("dropout", "scaled_dot_product_attention"):
        patches.replace(nn.functional, name, functools.partial(_dropping, name=name, observer=observer))
    steps: list[Any] = []

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if steps and steps[-1][0] is optimizer:  # the step before raised, and the script went on
            steps.pop()[1].__exit__(None, None, None)
        if recorder.off == 0:
            _tell(observer, observer.stepping, optimizer, sys._getframe(1))
            context = recorder.suspended()
            context.__enter__()
            steps.append((optimizer, context))

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if steps and steps[-1][0] is optimizer:
            steps.pop()[1].__exit__(None, None, None)
            _tell(observer, observer.stepped, optimizer, sys._getframe(1))

    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    patches.keep(register_optimizer_step_pre_hook(before))
    patches.keep(register_optimizer_step_post_hook(after))


def patch_generate(patches: Patches, observer: Watching, module: ModuleType) -> None:
    """transformers.generation.utils"""
    mixin = module.GenerationMixin
    patches.replace(mixin, "generate", lambda original: _generate(original, observer))
    if hasattr(mixin, "_prepare_generation_config"):
        patches.replace(mixin, "_prepare_generation_config", lambda original: _config(original, observer))


def _tell(observer: Watching, what: Callable[..., None], *details: Any) -> None:
    attempt(observer.recorder.broke, what, *details)


def _pass(original: Callable[..., Any], observer: Watching) -> Callable[..., Any]:
    recorder = observer.recorder

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if recorder.off:
            if observer.inside is not None and observer.inside[0] is self:
                _tell(observer, _width, observer.inside[1], args, kwargs)
            return original(self, *args, **kwargs)
        if not attempt(recorder.broke, observer.is_a_pass, self, args, kwargs):
            return original(self, *args, **kwargs)
        observer.dropouts = 0
        nn.Module.__call__ = original  # type: ignore[method-assign]
        try:
            with recorder.suspended():
                output = original(self, *args, **kwargs)
        finally:
            if not recorder.stopped:
                nn.Module.__call__ = __call__  # type: ignore[method-assign]
        _tell(observer, observer.passed, self, args, kwargs, output, sys._getframe(1))
        return output

    return __call__


def _width(widths: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = next((one for one in (kwargs.get("input_ids"), *args) if isinstance(one, torch.Tensor)), None)
    widths.append(0 if ids is None or ids.dim() < 2 else int(ids.shape[1]))


def _dropping(original: Callable[..., Any], name: str, observer: Watching) -> Callable[..., Any]:
    """Counts what really drops: a probability above 0, not switched off."""

    @functools.wraps(original)
    def dropping(*args: Any, **kwargs: Any) -> Any:
        _tell(observer, count, args, kwargs)
        return original(*args, **kwargs)

    def count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "dropout":
            p, on = (
                kwargs.get("p", args[1] if len(args) > 1 else 0.5),
                kwargs.get("training", args[2] if len(args) > 2 else True),
            )
        else:
            p, on = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0), True
        observer.dropouts += bool(on and p > 0)

    return dropping


def _generate(original: Callable[..., Any], observer: Watching) -> Callable[..., Any]:
    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.recorder.off or observer.recorder.stopped:
            return original(self, *args, **kwargs)
        _tell(observer, observer.generating, self, sys._getframe(1))
        with observer.recorder.suspended():
            output = original(self, *args, **kwargs)
        _tell(observer, observer.generated, self, args, kwargs, output, sys._getframe(1))
        return output

    return generate


def _config(original: Callable[..., Any], observer: Watching) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original(self, *args, **kwargs)
        _tell(observer, observer.generation_config, prepared[0] if isinstance(prepared, tuple) else prepared)
        return prepared

    return prepare


def _distribution(original: Callable[..., None], observer: Watching) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if observer.recorder.off:
            return original(self, *args, **kwargs)
        names = ("probs", "logits", "validate_args")
        _tell(
            observer, observer.distributed, self, {**dict(zip(names, args, strict=False)), **kwargs}, sys._getframe(1)
        )
        with observer.recorder.suspended():
            return original(self, *args, **kwargs)

    return __init__


def _asked(original: Callable[..., Any], kind: str, observer: Watching) -> Callable[..., Any]:
    @functools.wraps(original)
    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.recorder.off:
            return original(self, *args, **kwargs)
        _tell(observer, observer.drawing, kind)
        with observer.recorder.suspended():
            result = original(self, *args, **kwargs)
        _tell(observer, observer.asked, self, kind, args or tuple(kwargs.values()), result, sys._getframe(1))
        return result

    return asked


def _told(original: Callable[..., Any], kind: str, observer: Watching) -> Callable[..., Any]:
    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        if observer.recorder.off:
            return original(*args, **kwargs)
        _tell(observer, observer.happened, kind, args[0] if args else None, (args[1:], kwargs), sys._getframe(1))
        with observer.recorder.suspended():
            return original(*args, **kwargs)

    return told

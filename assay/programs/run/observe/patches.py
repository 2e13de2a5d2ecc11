"""Functions of torch and transformers that report their calls to an observer; all are put back at the end.

Only what the script itself calls is reported: what runs below such a call runs as it would without us.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from assay.programs.run.observe.guard import shielded

if TYPE_CHECKING:
    from assay.programs.run.observe.observer import ScriptObserver


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


def patch_torch(patches: Patches, observer: ScriptObserver) -> None:
    patches.replace(nn.Module, "__call__", lambda original: _pass(original, observer))
    around = functools.partial(functools.partial, _around, observer=observer)
    for op, made in (("categorical", torch.distributions.Categorical), ("bernoulli", torch.distributions.Bernoulli)):
        patches.replace(made, "__init__", around(before=functools.partial(observer.add_distribution, op)))
        patches.replace(made, "sample", around(before=observer.before_sample, after=observer.after_sample))
        for name in ("log_prob", "entropy"):
            patches.replace(made, name, around(after=functools.partial(observer.add_result, name)))
    events: tuple[tuple[Any, str, str], ...] = (
        (torch.nn.utils, "clip_grad_norm_", "clip_grad_norm"),
        (torch.nn.utils, "clip_grad_value_", "clip_grad_norm"),
        (torch.nn.utils.clip_grad, "clip_grad_norm_", "clip_grad_norm"),
        (torch.nn.utils.clip_grad, "clip_grad_value_", "clip_grad_norm"),
        (torch.optim.Optimizer, "zero_grad", "zero_grad"),
        (nn.Module, "zero_grad", "zero_grad"),
        (nn.Module, "train", "train"),
        (nn.Module, "load_state_dict", "load_state_dict"),
        (torch, "manual_seed", "manual_seed"),
        (torch.optim.lr_scheduler.LRScheduler, "step", "scheduler"),
        (torch.nn.parallel.DistributedDataParallel, "__init__", "ddp"),
    )
    for owner, name, kind in events:
        patches.replace(owner, name, around(before=functools.partial(observer.add_event, kind)))
    for name in ("dropout", "scaled_dot_product_attention"):
        patches.replace(nn.functional, name, functools.partial(_count_dropout, name=name, observer=observer))
    _patch_steps(patches, observer)


def _patch_steps(patches: Patches, observer: ScriptObserver) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    recorder = observer.recorder
    steps: list[Any] = []  # in progress: optimizer, and the context in which the recorder is off

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if steps and steps[-1][0] is optimizer:  # the step before raised, and the script went on
            steps.pop()[1].__exit__(None, None, None)
        if recorder.off == 0 and not recorder.is_elsewhere():
            shielded(recorder.broke, observer.before_step, optimizer, sys._getframe(1))
            context = recorder.suspended()
            context.__enter__()
            steps.append((optimizer, context))

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if steps and steps[-1][0] is optimizer:
            steps.pop()[1].__exit__(None, None, None)
            shielded(recorder.broke, observer.after_step, optimizer)

    patches.keep(register_optimizer_step_pre_hook(before))
    patches.keep(register_optimizer_step_post_hook(after))


def patch_generate(patches: Patches, observer: ScriptObserver, module: ModuleType) -> None:
    """transformers.generation.utils"""
    mixin = module.GenerationMixin
    generate = functools.partial(
        _around, observer=observer, before=observer.before_generate, after=observer.after_generate
    )
    patches.replace(mixin, "generate", generate)
    if hasattr(mixin, "_prepare_generation_config"):
        patches.replace(mixin, "_prepare_generation_config", lambda original: _keep_config(original, observer))


def _around(
    original: Callable[..., Any],
    observer: ScriptObserver,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """The same function; the script's own calls are reported: before(args, kwargs, frame), after(..., result)."""
    recorder = observer.recorder

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if recorder.off or recorder.is_elsewhere():
            return original(*args, **kwargs)
        if before is not None:
            shielded(recorder.broke, before, args, kwargs, sys._getframe(1))
        with recorder.suspended():
            result = original(*args, **kwargs)
        if after is not None:
            shielded(recorder.broke, after, args, kwargs, sys._getframe(1), result)
        return result

    return call


def _pass(original: Callable[..., Any], observer: ScriptObserver) -> Callable[..., Any]:
    recorder = observer.recorder

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if recorder.is_elsewhere():
            return original(self, *args, **kwargs)
        if recorder.off:
            if observer.inside is not None and observer.inside[0] is self:
                shielded(recorder.broke, _add_width, observer.inside[1], args, kwargs)
            return original(self, *args, **kwargs)
        if not shielded(recorder.broke, observer.is_a_pass, self, args, kwargs):
            return original(self, *args, **kwargs)
        observer.dropouts = 0
        nn.Module.__call__ = original  # type: ignore[method-assign]
        try:
            with recorder.suspended():
                output = original(self, *args, **kwargs)
        finally:
            if not recorder.stopped:
                nn.Module.__call__ = __call__  # type: ignore[method-assign]
        shielded(recorder.broke, observer.add_pass, self, args, kwargs, output, sys._getframe(1))
        return output

    return __call__


def _add_width(widths: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = next((given for given in (kwargs.get("input_ids"), *args) if isinstance(given, torch.Tensor)), None)
    widths.append(0 if ids is None or ids.dim() < 2 else int(ids.shape[1]))


def _count_dropout(original: Callable[..., Any], name: str, observer: ScriptObserver) -> Callable[..., Any]:
    """Counts what really drops: a probability above 0, not switched off."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        shielded(observer.recorder.broke, count, args, kwargs)
        return original(*args, **kwargs)

    def count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "dropout":
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            is_on = kwargs.get("training", args[2] if len(args) > 2 else True)
        else:
            p, is_on = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0), True
        observer.dropouts += bool(is_on and p > 0)

    return call


def _keep_config(original: Callable[..., Any], observer: ScriptObserver) -> Callable[..., Any]:
    """Of the configuration that generate() prepares for itself."""

    @functools.wraps(original)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original(self, *args, **kwargs)
        observer.config = prepared[0] if isinstance(prepared, tuple) else prepared
        return prepared

    return prepare

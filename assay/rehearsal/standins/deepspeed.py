"""DeepSpeed in one process: the engine accumulates, clips and steps as its configuration says, with float32 masters."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import provide

_OF_ADAM = ("lr", "betas", "eps", "weight_decay")


def install(stage: Stage) -> None:
    provide("deepspeed", functools.partial(_deepspeed, stage))
    provide("deepspeed.ops.adam", _adam)


def _deepspeed(stage: Stage, module: Any) -> None:
    def initialize(
        args: Any = None, model: Any = None, optimizer: Any = None, model_parameters: Any = None,
        training_data: Any = None, lr_scheduler: Any = None, config: Any = None, config_params: Any = None, **how: Any,
    ) -> tuple[Any, Any, Any, Any]:  # fmt: skip
        import torch

        stage.replaced("processes", "deepspeed", "an engine in one process")
        torch.distributed.init_process_group()
        given = _configuration(config or config_params or getattr(args, "deepspeed_config", None))
        dtype = _dtype(given, torch)
        if dtype is not None:
            model.to(dtype)
        if optimizer is None and isinstance(given.get("optimizer"), dict):
            trained = list(model.parameters() if model_parameters is None else model_parameters)
            optimizer = _optimizer(given["optimizer"], trained, torch)
        elif callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(list(model.parameters() if model_parameters is None else model_parameters))
        if optimizer is not None:
            with_masters(optimizer)
        if callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
            lr_scheduler = lr_scheduler(optimizer)
        if lr_scheduler is None and isinstance(given.get("scheduler"), dict) and optimizer is not None:
            lr_scheduler = _scheduler(given["scheduler"], optimizer, torch)
        engine = _engine(torch)(model, optimizer, given, lr_scheduler)
        loader = None
        if training_data is not None:
            loader = torch.utils.data.DataLoader(training_data, batch_size=engine.train_micro_batch_size_per_gpu())
        return engine, optimizer, loader, lr_scheduler

    def init_distributed(*args: Any, **kwargs: Any) -> None:
        import torch

        torch.distributed.init_process_group()

    def add_config_arguments(parser: Any) -> Any:
        parser.add_argument("--deepspeed", action="store_true")
        parser.add_argument("--deepspeed_config", default=None)
        return parser

    module.initialize, module.init_distributed = initialize, init_distributed
    module.init_inference = lambda model=None, *args, **kwargs: model
    module.add_config_arguments = add_config_arguments
    module.zero = ModuleType("deepspeed.zero")
    module.zero.GatheredParameters = module.zero.Init = _scope
    module.__version__ = "0.16.0"


@contextlib.contextmanager
def _scope(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _adam(module: Any) -> None:
    import torch

    class FusedAdam(torch.optim.AdamW):
        def __init__(self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), **kwargs: Any) -> None:
            kept = {key: kwargs[key] for key in ("eps", "weight_decay", "amsgrad") if key in kwargs}
            super().__init__(params, lr=lr, betas=tuple(betas), **{"weight_decay": 0.0, **kept})

    module.FusedAdam = module.DeepSpeedCPUAdam = FusedAdam


def _configuration(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    return dict(json.loads(Path(given).read_text(encoding="utf-8")))


def _dtype(given: Mapping[str, Any], torch: Any) -> Any:
    for name, dtype in (("bf16", torch.bfloat16), ("bfloat16", torch.bfloat16), ("fp16", torch.float16)):
        part = given.get(name)
        if isinstance(part, Mapping) and part.get("enabled") in (True, "true"):
            return dtype
    return None


def _number(value: Any, otherwise: float) -> float:
    """`auto`, and what is left out, is the default."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


def _optimizer(given: Mapping[str, Any], trained: list[Any], torch: Any) -> Any:
    settings = {
        key: value for key, value in given.get("params", {}).items() if key in _OF_ADAM and not isinstance(value, str)
    }
    kind = str(given.get("type", "AdamW")).lower()
    if kind == "sgd":
        return torch.optim.SGD(trained, lr=settings.get("lr", 1e-3), weight_decay=settings.get("weight_decay", 0.0))
    is_adam = kind == "adam" and given.get("params", {}).get("adam_w_mode") is False
    make = torch.optim.Adam if is_adam else torch.optim.AdamW
    return make(trained, **{"weight_decay": 0.0, **settings})


def _scheduler(given: Mapping[str, Any], optimizer: Any, torch: Any) -> Any:
    settings = given.get("params", {})
    warm = max(_number(settings.get("warmup_num_steps"), 1000), 1)
    total = max(_number(settings.get("total_num_steps"), math.inf), warm + 1)
    highest = _number(settings.get("warmup_max_lr"), optimizer.param_groups[0]["lr"])
    lowest = _number(settings.get("warmup_min_lr"), 0.0)
    for group in optimizer.param_groups:
        group["lr"] = highest
    is_log = settings.get("warmup_type", "log") == "log"

    def factor(step: int) -> float:
        if step < warm:
            part = math.log(step + 1) / math.log(warm) if is_log and warm > 1 else step / warm
            return (lowest + (highest - lowest) * min(part, 1.0)) / highest
        if "Decay" in str(given.get("type")) and math.isfinite(total):
            return max(0.0, (total - step) / (total - warm))
        return 1.0

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def with_masters(optimizer: Any) -> None:
    """Weights below float32 are stepped as float32 copies, which stay, and are rounded into the model."""
    import torch

    low = (torch.bfloat16, torch.float16)
    base = type(optimizer)
    step = getattr(base.step, "__wrapped__", base.step)
    masters: dict[int, Any] = {}

    class WithMasters(base):  # type: ignore[misc,valid-type]
        def step(self, closure: Any = None) -> Any:
            swapped = []
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.dtype in low and weight.grad is not None:
                        rounded, gradient = weight.data, weight.grad
                        master = masters.setdefault(id(weight), rounded.float())
                        weight.grad, weight.data = None, master
                        weight.grad = gradient.float()
                        swapped.append((weight, rounded, gradient, master))
            result = step(self, closure)
            for weight, rounded, gradient, master in swapped:
                weight.grad, weight.data = None, rounded
                weight.grad = gradient
                rounded.copy_(master)
            return result

    WithMasters.__name__ = base.__name__
    optimizer.__class__ = WithMasters
    optimizer._patch_step_function()


@functools.cache
def _engine(torch: Any) -> Any:
    class DeepSpeedEngine(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, model: Any, optimizer: Any, given: dict[str, Any], scheduler: Any) -> None:
            super().__init__()
            self.module = model
            self.optimizer, self.lr_scheduler, self.config = optimizer, scheduler, given
            self._micro = int(_number(given.get("train_micro_batch_size_per_gpu"), 1))
            total = _number(given.get("train_batch_size"), self._micro)
            self._accumulated = int(_number(given.get("gradient_accumulation_steps"), max(1, total // self._micro)))
            self._clip = _number(given.get("gradient_clipping"), 0.0)
            self.device = torch.device("cpu")
            self.local_rank = self.global_rank = self.global_steps = self.micro_steps = 0
            self.world_size, self._norm = 1, None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("module"), name)

        def backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
            (loss / self._accumulated).backward()
            return loss

        def step(self, *args: Any, **kwargs: Any) -> None:
            self.micro_steps += 1
            if self.micro_steps % self._accumulated:
                return
            if self._clip:
                self._norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_steps += 1
            if self.lr_scheduler is not None:
                self.lr_scheduler.step()

        def is_gradient_accumulation_boundary(self) -> bool:
            return (self.micro_steps + 1) % self._accumulated == 0

        def gradient_accumulation_steps(self) -> int:
            return self._accumulated

        def train_micro_batch_size_per_gpu(self) -> int:
            return self._micro

        def train_batch_size(self) -> int:
            return self._micro * self._accumulated

        def gradient_clipping(self) -> float:
            return self._clip

        def get_global_grad_norm(self) -> Any:
            return self._norm

        def get_lr(self) -> list[float]:
            return [group["lr"] for group in self.optimizer.param_groups]

        def no_sync(self) -> Any:
            return contextlib.nullcontext()

        def load_checkpoint(self, *args: Any, **kwargs: Any) -> tuple[None, dict[str, Any]]:
            return None, {}

        def save_checkpoint(self, *args: Any, **kwargs: Any) -> bool:
            return True

        save_16bit_model = save_fp16_model = set_gradient_accumulation_boundary = save_checkpoint

    return DeepSpeedEngine

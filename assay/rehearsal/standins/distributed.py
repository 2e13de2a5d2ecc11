"""torch.distributed in one process: a group of one, wrappers that pass through, and the variables of torchrun."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins import processes

_TORCHRUN = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
}  # fmt: skip
_MOST_FILES = 80
_FROM_OR_TO = "src dst group_src group_dst".split()


def install(stage: Stage) -> None:
    for name in _TORCHRUN.keys() & environment_asked(stage.script):
        os.environ.setdefault(name, _TORCHRUN[name])
        stage.replaced("processes", "torchrun", "one process")
    processes.install(stage)
    stage.when_imported("torch.distributed", functools.partial(_distributed, stage))
    stage.when_imported("torch.distributed.device_mesh", functools.partial(_mesh, stage))
    stage.when_imported("torch.nn.parallel.distributed", functools.partial(_data_parallel, stage))
    stage.when_imported("torch.distributed.fsdp", functools.partial(_sharded, stage))


def project_files(script: Path) -> list[Path]:
    """The script, and the Python files beside it and up to two folders below."""
    beside = [file for pattern in ("*.py", "*/*.py", "*/*/*.py") for file in sorted(script.parent.glob(pattern))]
    return [script, *(file for file in beside[:_MOST_FILES] if file != script)]


def environment_asked(script: Path) -> set[str]:
    """Variables that the script's project reads as os.environ["NAME"], which fails where they are not set."""
    found: set[str] = set()
    for file in project_files(script):
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environ(node.value):
                found |= {node.slice.value} if _is_text(node.slice) else set()  # type: ignore[attr-defined]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("int", "str") and node.args:
                found |= _without_default(node.args[0])
    return found


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _without_default(node: ast.expr) -> set[str]:
    """int(os.getenv("RANK")) fails as well."""
    is_asked = isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.getenv", "os.environ.get")
    if is_asked and isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return {str(node.args[0].value)} if isinstance(node.args[0], ast.Constant) else set()
    return set()


def _distributed(stage: Stage, module: ModuleType) -> None:
    if not module.is_available():
        return
    begin = module.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        if not module.is_initialized():
            stage.replaced("processes", "torch.distributed", "a group of one process")
            begin("gloo", store=module.HashStore(), rank=0, world_size=1)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    module.is_nccl_available = lambda: True  # type: ignore[attr-defined]
    group = module.new_group

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return group([0])

    module.new_group = new_group  # type: ignore[attr-defined]
    for name in "broadcast reduce gather scatter broadcast_object_list gather_object scatter_object_list".split():
        setattr(module, name, _from_zero(getattr(module, name)))
    wait = module.barrier
    module.barrier = lambda *args, **kwargs: wait()  # type: ignore[attr-defined]


def _from_zero(collective: Any) -> Any:
    """The only rank is 0, whatever rank was to send or to receive."""

    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.update({name: 0 for name in _FROM_OR_TO if kwargs.get(name) is not None})
        if len(args) > 1 and isinstance(args[1], int):
            args = (args[0], 0, *args[2:])
        return collective(*args, **kwargs)

    return call


def _mesh(stage: Stage, module: ModuleType) -> None:
    make = module.init_device_mesh

    def init_device_mesh(device_type: str, mesh_shape: tuple[int, ...], **kwargs: Any) -> Any:
        import torch.distributed

        torch.distributed.init_process_group()
        return make("cpu", (1,) * len(mesh_shape), **kwargs)

    module.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]


def _data_parallel(stage: Stage, module: ModuleType) -> None:
    begin = module.DistributedDataParallel.__init__

    @functools.wraps(begin)
    def init(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_ids", None)
        kwargs.pop("output_device", None)
        begin(self, model, None, None, *args[2:], **kwargs)

    module.DistributedDataParallel.__init__ = init


def _sharded(stage: Stage, module: ModuleType) -> None:
    """FSDP of one process shards nothing: the wrapper has the model as its child `module`, and the API around it."""
    import torch

    class FullyShardedDataParallel(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, *args: Any, mixed_precision: Any = None, **kwargs: Any) -> None:
            super().__init__()
            stage.replaced("processes", "FSDP", "the model in one piece")
            dtype = getattr(mixed_precision, "param_dtype", None)
            self.module = module
            self._autocast = dtype if dtype in (torch.bfloat16, torch.float16) else None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", dtype=self._autocast or torch.bfloat16, enabled=self._autocast is not None):
                return self.module(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("module"), name)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return self.module.state_dict(*args, **kwargs)

        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            return self.module.load_state_dict(state_dict, strict, assign)

        def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
            return torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            yield

        @staticmethod
        @contextlib.contextmanager
        def summon_full_params(module: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
            yield

        @staticmethod
        @contextlib.contextmanager
        def state_dict_type(module: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
            yield

        @staticmethod
        def set_state_dict_type(module: Any, *args: Any, **kwargs: Any) -> None:
            pass

        @staticmethod
        def optim_state_dict(module: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return optimizer.state_dict()

        full_optim_state_dict = optim_state_dict

    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        stage.replaced("processes", "FSDP", "the model in one piece")
        for (
            name
        ) in "unshard reshard set_requires_gradient_sync set_is_last_backward set_reshard_after_backward".split():
            vars(module)[name] = lambda *args, **kwargs: None
        return module

    module.FullyShardedDataParallel = FullyShardedDataParallel  # type: ignore[attr-defined]
    module.fully_shard = fully_shard  # type: ignore[attr-defined]

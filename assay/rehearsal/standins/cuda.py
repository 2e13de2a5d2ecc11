"""GPUs: devices land on the CPU, and what a script asks about them has an answer.

The script's own lines see one GPU (or as many as it numbers); libraries keep the truth. Autocast of CUDA computes what
CUDA would: the kernels of CPU autocast get CUDA's list of operations in float32.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from assay.rehearsal.stage import Stage

_GPUS = ("cuda", "mps", "xpu", "hpu", "npu", "musa")
_MEMORY = 80 << 30
_NUMBERED = re.compile(r"cuda:(\d)\b")

# torch/include/ATen/autocast_mode.h: what CUDA's autocast computes in float32, and, of these, what has an own dtype
_FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm "
    "cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss_nd nll_loss2d hinge_embedding_loss "
    "kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss "
    "triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp"
).split()
_FLOAT32_UNLESS_ASKED = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm sum "
    "sum.dim_IntList"
).split()
_HARMLESS = (
    "synchronize empty_cache reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached ipc_collect "
    "set_per_process_memory_fraction init set_stream reset_accumulated_memory_stats set_sync_debug_mode "
    "_lazy_init set_rng_state set_rng_state_all manual_seed manual_seed_all seed seed_all"
).split()
_NO_MEMORY = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached "
    "utilization temperature power_draw memory_usage"
).split()


def install(stage: Stage) -> None:
    stage.when_imported("torch", functools.partial(_torch, stage))
    stage.when_imported("safetensors.torch", functools.partial(_safetensors, stage))
    stage.when_imported("safetensors", functools.partial(_safe_open, stage))


def is_gpu(device: Any) -> bool:
    """Whether this names a GPU: "cuda:0", torch.device("mps"), 0."""
    if isinstance(device, str):
        return device.split(":")[0] in _GPUS
    if isinstance(device, int):
        return not isinstance(device, bool)
    kind = getattr(device, "type", None)
    return isinstance(kind, str) and kind in _GPUS and type(device).__name__ == "device"


def _torch(stage: Stage, torch: ModuleType) -> None:
    mode = _mode(stage, torch)
    mode().__enter__()
    torch.distributions.Distribution.set_default_validate_args(False)  # sums of 16 bits differ between devices
    _in_threads(mode)
    _answers(stage, torch)
    _autocast(stage, torch)
    _modules(stage, torch)


def _say(stage: Stage, device: Any) -> None:
    stage.replaced("device", device if isinstance(device, str) else "a GPU", "the CPU")


def _mode(stage: Stage, torch: Any) -> Callable[[], Any]:
    """A mode below every call of torch: GPUs among the arguments become the CPU."""
    from torch.overrides import TorchFunctionMode

    cpu, tensor = torch.device("cpu"), torch.Tensor
    unchanged = {tensor.cuda, tensor.pin_memory, tensor.xpu}

    class OnCPU(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in unchanged:
                return args[0]
            if kwargs:
                if is_gpu(kwargs.get("device")):
                    kwargs = {**kwargs, "device": cpu}
                if kwargs.get("pin_memory"):
                    kwargs = {**kwargs, "pin_memory": False}
            if func is tensor.to and len(args) > 1 and is_gpu(args[1]):
                args = (args[0], cpu, *args[2:])
            return func(*args, **kwargs)

    return OnCPU


def _in_threads(mode: Callable[[], Any]) -> None:
    """The stack of modes belongs to a thread; each new one gets its own."""
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(self: threading.Thread) -> None:
        with mode():
            begin(self)

    threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]


def _number_of_gpus(stage: Stage) -> int:
    try:
        text = stage.script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 1
    return 1 + max((int(number) for number in _NUMBERED.findall(text)), default=0)


def _answers(stage: Stage, torch: Any) -> None:
    """What scripts ask torch.cuda."""
    cuda = torch.cuda
    truth = {name: getattr(cuda, name) for name in ("is_available", "device_count")}
    count = _number_of_gpus(stage)
    now = [0]

    def is_available() -> bool:
        if stage.is_asked_by_script():
            _say(stage, "cuda")
            return True
        return bool(truth["is_available"]())

    def device_count() -> int:
        return count if stage.is_asked_by_script() else int(truth["device_count"]())

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else getattr(device, "index", None)
        now[0] = index or 0

    cuda.is_available, cuda.device_count, cuda.set_device = is_available, device_count, set_device
    cuda.current_device = lambda: now[0]
    for name in _HARMLESS:
        setattr(cuda, name, _constant(None))
    for name in _NO_MEMORY:
        setattr(cuda, name, _constant(0))
    shown = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", total_memory=_MEMORY, major=9, minor=0, multi_processor_count=132, warp_size=32
    )
    cuda.get_device_name = _constant(shown.name)
    cuda.get_device_capability = _constant((9, 0))
    cuda.get_device_properties = _constant(shown)
    cuda.get_arch_list = _constant(["sm_90"])
    cuda.mem_get_info = _constant((_MEMORY, _MEMORY))
    cuda.memory_stats = lambda *args, **kwargs: {}
    cuda.memory_summary = _constant("")
    cuda.is_initialized = _constant(True)
    cuda.is_bf16_supported = lambda *args, **kwargs: stage.is_asked_by_script()
    cuda.get_rng_state = lambda *args, **kwargs: torch.random.get_rng_state()
    cuda.get_rng_state_all = lambda: [torch.random.get_rng_state()]
    cuda.Event, cuda.Stream, cuda.device = _Event, _Stream, _Nothing
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: _Stream()
    cuda.stream = _Nothing
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, _constant(0))
    cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.memory._record_memory_history = _constant(None)
    torch.mps.empty_cache = torch.mps.synchronize = torch.mps.manual_seed = _constant(None)
    torch.xpu.empty_cache = torch.xpu.synchronize = torch.xpu.manual_seed = torch.xpu.manual_seed_all = _constant(None)
    _accelerator(stage, torch, count)


def _accelerator(stage: Stage, torch: Any, count: int) -> None:
    if not hasattr(torch, "accelerator"):
        return
    accelerator = torch.accelerator
    current, available = accelerator.current_accelerator, accelerator.is_available
    gpu = torch.device("cuda")
    accelerator.is_available = lambda: stage.is_asked_by_script() or available()
    accelerator.current_accelerator = lambda *args, **kwargs: (
        gpu if stage.is_asked_by_script() else current(*args, **kwargs)
    )
    accelerator.device_count = lambda: count if stage.is_asked_by_script() else 0
    for name in ("synchronize", "set_device_index", "set_device_idx", "empty_cache"):
        setattr(accelerator, name, _constant(None))


def _constant(value: Any) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return value

    return answer


class _Nothing:
    """A device, a stream or a range that is entered and left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.time = 0.0

    def record(self, *args: Any) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, later: _Event) -> float:
        return (later.time - self.time) * 1000

    def synchronize(self, *args: Any) -> None:
        pass

    wait = synchronize

    def query(self) -> bool:
        return True


class _Stream(_Nothing):
    device_index = 0
    cuda_stream = 0

    def synchronize(self, *args: Any) -> None:
        pass

    wait_stream = wait_event = synchronize

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event

    def query(self) -> bool:
        return True


def _autocast(stage: Stage, torch: Any) -> None:
    """Autocast of CUDA is autocast of the CPU with CUDA's list of operations in float32; a scaler does nothing."""
    scope = torch.amp.autocast_mode.autocast
    begin = scope.__init__

    @functools.wraps(begin)
    def init(self: Any, device_type: Any, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        if is_gpu(device_type):
            _say(stage, "cuda")
            device_type, dtype = "cpu", dtype or torch.float16
        if dtype is torch.float32:
            dtype, enabled = torch.bfloat16, False
        begin(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    scope.__init__ = init
    of_cpu = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda kind="cpu": of_cpu("cpu" if is_gpu(kind) else kind)
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")
    _float32_kernels(torch)
    disabled = torch.amp.GradScaler.__init__

    @functools.wraps(disabled)
    def scaler(self: Any, *args: Any, **kwargs: Any) -> None:
        disabled(self, "cpu", enabled=False)

    torch.amp.GradScaler.__init__ = scaler


def _float32_kernels(torch: Any) -> None:
    low = (torch.bfloat16, torch.float16)
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(operation: Any, *, unless_asked: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            is_asked = unless_asked and (
                kwargs.get("dtype") is not None or any(isinstance(part, torch.dtype) for part in args)
            )
            if not is_asked:
                args = tuple(
                    part.float() if isinstance(part, torch.Tensor) and part.dtype in low else part for part in args
                )
            with torch._C._ExcludeDispatchKeyGuard(without):
                return operation(*args, **kwargs)

        return call

    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    torch._rehearsal_kernels = library  # they are gone when it is
    for names, unless_asked in ((_FLOAT32, False), (_FLOAT32_UNLESS_ASKED, True)):
        for name in names:
            base, _, overload = name.partition(".")
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
                operation = getattr(getattr(torch.ops.aten, base), overload or "default")
                library.impl(name, kernel(operation, unless_asked=unless_asked))


def _modules(stage: Stage, torch: Any) -> None:
    """What takes a device and is not a function of tensors."""
    move = torch.nn.Module.to

    @functools.wraps(move)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and is_gpu(args[0]):
            _say(stage, args[0])
            args = ("cpu", *args[1:])
        if is_gpu(kwargs.get("device")):
            _say(stage, kwargs["device"])
            kwargs["device"] = "cpu"
        return move(self, *args, **kwargs)

    torch.nn.Module.to = to
    torch.nn.Module.cuda = torch.nn.Module.xpu = lambda self, device=None: self
    make = torch.Generator

    class Generator(make):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return make("cpu" if is_gpu(device) else device)

    torch.Generator = Generator
    default = torch.set_default_device

    def set_default_device(device: Any) -> None:
        if not is_gpu(device):
            default(device)

    torch.set_default_device = set_default_device
    tensor_type = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        tensor_type(kind.replace(".cuda", "") if isinstance(kind, str) else kind)

    torch.set_default_tensor_type = set_default_tensor_type
    torch.load = _on_cpu(torch.load, "map_location", 1)
    torch.nn.DataParallel = _data_parallel(torch)


def _data_parallel(torch: Any) -> Any:
    class DataParallel(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, module: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    return DataParallel


def _on_cpu(function: Callable[..., Any], name: str, position: int) -> Callable[..., Any]:
    """The same function; a GPU, or a function or dict that leads to one, is left out of one argument."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            kwargs[name], args = args[position], (*args[:position], *args[position + 1 :])
        if name in kwargs and (is_gpu(kwargs[name]) or callable(kwargs[name]) or isinstance(kwargs[name], dict)):
            kwargs[name] = "cpu"
        return function(*args, **kwargs)

    return call


def _safetensors(stage: Stage, module: ModuleType) -> None:
    load = module.load_file

    @functools.wraps(load)
    def load_file(filename: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        return load(filename, device="cpu" if is_gpu(device) else device, **kwargs)

    module.load_file = load_file  # type: ignore[attr-defined]
    model = module.load_model

    @functools.wraps(model)
    def load_model(model_: Any, filename: Any, strict: bool = True, device: Any = "cpu") -> Any:
        return model(model_, filename, strict=strict, device="cpu" if is_gpu(device) else device)

    module.load_model = load_model  # type: ignore[attr-defined]


def _safe_open(stage: Stage, module: ModuleType) -> None:
    opened = module.safe_open

    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **kwargs: Any) -> Any:
        return opened(filename, framework=framework, device="cpu" if is_gpu(device) else device, **kwargs)

    module.safe_open = safe_open  # type: ignore[attr-defined]

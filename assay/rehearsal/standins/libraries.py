"""Libraries that may be absent, or that want a GPU: small stand-ins that compute what the real ones would."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins import deepspeed, games, kernels, settings, small_libraries
from assay.rehearsal.standins.missing import provide


def install(stage: Stage) -> None:
    for part in (deepspeed, kernels, settings, games, small_libraries):
        part.install(stage)
    provide("accelerate", functools.partial(_accelerate_absent, stage))
    provide("bitsandbytes", functools.partial(_bitsandbytes, stage), even_if_caught=False)
    provide("bitsandbytes.optim", functools.partial(_bitsandbytes_optimizers, stage))
    provide("unsloth", functools.partial(_unsloth, stage))
    provide("peft", functools.partial(_no_adapters, stage))
    stage.when_imported("accelerate", functools.partial(_accelerate, stage))
    stage.when_imported("transformers", functools.partial(_old_names, stage))


def _accelerate(stage: Stage, module: Any) -> None:
    """The real one works on a CPU; what it refuses there is left out."""
    if not hasattr(module.Accelerator, "_prepare_one"):
        return  # the stand-in
    begin = module.Accelerator.__init__

    @functools.wraps(begin)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "dynamo_backend"):
            if kwargs.pop(name, None) is not None:
                stage.replaced("processes", name, "one process")
        if str(kwargs.get("mixed_precision")) in ("fp16", "fp8"):  # not on a CPU
            stage.replaced("device", f"mixed precision in {kwargs['mixed_precision']}", "bfloat16")
            kwargs["mixed_precision"] = "bf16"
        begin(self, *args, **kwargs)

    module.Accelerator.__init__ = init


def _accelerate_absent(stage: Stage, module: Any) -> None:
    import contextlib

    import torch

    class Accelerator:
        def __init__(
            self, gradient_accumulation_steps: int = 1, mixed_precision: str | None = None, **kwargs: Any
        ) -> None:
            self.gradient_accumulation_steps = gradient_accumulation_steps
            self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision or "")
            self.device = torch.device("cpu")
            self.is_main_process = self.is_local_main_process = self.is_last_process = True
            self.sync_gradients = True
            self.num_processes, self.process_index, self.local_process_index = 1, 0, 0
            self.mixed_precision, self.state = mixed_precision or "no", self
            self._passes = 0

        def prepare(self, *given: Any, **kwargs: Any) -> Any:
            return given[0] if len(given) == 1 else given

        prepare_model = prepare_optimizer = prepare_data_loader = prepare_scheduler = prepare

        def backward(self, loss: Any, **kwargs: Any) -> None:
            (loss / self.gradient_accumulation_steps).backward()

        @contextlib.contextmanager
        def accumulate(self, *models: Any) -> Any:
            self._passes += 1
            self.sync_gradients = self._passes % self.gradient_accumulation_steps == 0
            yield

        def autocast(self, **kwargs: Any) -> Any:
            return torch.autocast("cpu", dtype=self._dtype or torch.bfloat16, enabled=self._dtype is not None)

        def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type) if self.sync_gradients else None

        def unwrap_model(self, model: Any, **kwargs: Any) -> Any:
            return model

        def gather(self, tensor: Any, **kwargs: Any) -> Any:
            return tensor

        gather_for_metrics = reduce = pad_across_processes = gather

        def print(self, *args: Any, **kwargs: Any) -> None:
            print(*args, **kwargs)

        def no_sync(self, model: Any) -> Any:
            return contextlib.nullcontext()

        main_process_first = local_main_process_first = contextlib.nullcontext

        def wait_for_everyone(self, *args: Any, **kwargs: Any) -> None:
            pass

        init_trackers = log = end_training = save_state = load_state = save = wait_for_everyone
        register_for_checkpointing = free_memory = wait_for_everyone

        def get_state_dict(self, model: Any, **kwargs: Any) -> Any:
            return model.state_dict()

    def set_seed(seed: int, **kwargs: Any) -> None:
        torch.manual_seed(seed)

    module.Accelerator = module.PartialState = Accelerator
    module.utils = ModuleType("accelerate.utils")
    module.utils.set_seed = set_seed
    module.utils.gather_object = module.utils.broadcast_object_list = lambda objects, *args, **kwargs: objects
    module.utils.gather = module.utils.broadcast = lambda tensor, *args, **kwargs: tensor


def _bitsandbytes(stage: Stage, module: Any) -> None:
    import torch

    module.optim = ModuleType("bitsandbytes.optim")
    _bitsandbytes_optimizers(stage, module.optim)
    module.nn = ModuleType("bitsandbytes.nn")

    class Linear(torch.nn.Linear):
        def __init__(self, input_features: int, output_features: int, bias: bool = True, **kwargs: Any) -> None:
            super().__init__(input_features, output_features, bias)

    for name in ("Linear4bit", "Linear8bitLt", "LinearFP4", "LinearNF4"):
        setattr(module.nn, name, Linear)
    module.nn.Embedding = module.nn.StableEmbedding = torch.nn.Embedding
    module.__version__ = "0.45.0"


def _bitsandbytes_optimizers(stage: Stage, module: Any) -> None:
    """The same optimizers in full precision: their states are not rounded to 8 bits."""
    import torch

    def of(base: type[Any], name: str, decay: float) -> type[Any]:
        class Optimizer(base):  # type: ignore[misc]
            def __init__(self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), **kwargs: Any) -> None:
                stage.replaced("device", f"bitsandbytes.optim.{name}", f"torch.optim.{base.__name__}")
                kept = {key: kwargs[key] for key in ("eps", "weight_decay", "amsgrad") if key in kwargs}
                super().__init__(params, lr=lr, betas=tuple(betas), **{"weight_decay": decay, **kept})

        Optimizer.__name__ = Optimizer.__qualname__ = name
        return Optimizer

    for name in "AdamW AdamW8bit AdamW32bit PagedAdamW PagedAdamW8bit PagedAdamW32bit".split():
        setattr(module, name, of(torch.optim.AdamW, name, 1e-2))
    for name in "Adam Adam8bit Adam32bit PagedAdam PagedAdam8bit PagedAdam32bit".split():
        setattr(module, name, of(torch.optim.Adam, name, 0.0))
    for name in ("SGD", "SGD8bit"):
        setattr(module, name, torch.optim.SGD)


def _unsloth(stage: Stage, module: Any) -> None:
    def from_pretrained(model_name: Any = None, dtype: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype or torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(model_name)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        tokenizer.padding_side = "left"
        return _with_methods(model), tokenizer

    def get_peft_model(model: Any, r: int = 16, **kwargs: Any) -> Any:
        from peft import LoraConfig
        from peft import get_peft_model as wrap

        kept = {key: kwargs[key] for key in ("target_modules", "lora_alpha", "lora_dropout", "bias") if key in kwargs}
        if isinstance(kept.get("target_modules"), (list, tuple)):
            kept["target_modules"] = list(kept["target_modules"])
        return _with_methods(wrap(model, LoraConfig(r=r, task_type="CAUSAL_LM", **kept)))

    def unchanged(model: Any, *args: Any, **kwargs: Any) -> Any:
        return model

    ways = {
        "from_pretrained": staticmethod(from_pretrained), "get_peft_model": staticmethod(get_peft_model),
        "for_training": staticmethod(unchanged), "for_inference": staticmethod(unchanged),
    }  # fmt: skip
    for name in ("FastLanguageModel", "FastModel", "FastVisionModel", "FastQwen2Model", "FastLlamaModel"):
        setattr(module, name, type(name, (), ways))
    module.is_bfloat16_supported = module.is_bf16_supported = lambda: True
    module.PatchFastRL = lambda *args, **kwargs: None


def _with_methods(model: Any) -> Any:
    """What unsloth adds to a model."""
    for name in ("save_lora", "load_lora", "save_pretrained_merged", "save_pretrained_gguf"):
        vars(model)[name] = lambda *args, **kwargs: None
    vars(model)["fast_generate"] = model.generate
    return model


def _no_adapters(stage: Stage, module: Any) -> None:
    """Without peft all weights are trained."""

    class Config:
        def __init__(self, **kwargs: Any) -> None:
            vars(self).update(kwargs)

    def get_peft_model(model: Any, *args: Any, **kwargs: Any) -> Any:
        stage.replaced("weights", "LoRA adapters", "all weights of the model")
        vars(model).setdefault("print_trainable_parameters", lambda: None)
        vars(model).setdefault("merge_and_unload", lambda *args, **kwargs: model)
        return model

    module.LoraConfig = module.PeftConfig = Config
    module.get_peft_model = module.prepare_model_for_kbit_training = get_peft_model
    module.TaskType = type("TaskType", (), {"CAUSAL_LM": "CAUSAL_LM", "SEQ_CLS": "SEQ_CLS"})
    from_pretrained = staticmethod(get_peft_model)
    module.PeftModel = module.PeftModelForCausalLM = type("PeftModel", (), {"from_pretrained": from_pretrained})


def _old_names(stage: Stage, transformers: Any) -> None:
    """Names that earlier versions had."""
    import torch

    class AdamW(torch.optim.AdamW):
        def __init__(
            self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-6,
            weight_decay: float = 0.0, correct_bias: bool = True, **kwargs: Any,
        ) -> None:  # fmt: skip
            super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    known = getattr(transformers, "_objects", vars(transformers))
    if "AdamW" not in known and not hasattr(transformers, "AdamW"):
        transformers.AdamW = AdamW

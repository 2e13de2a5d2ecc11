"""vLLM in the script's process: a small model that samples as vLLM does, with weights that are stale until published.

Each batch is one call of the real generate(), so that the watcher sees what was sampled, with which settings and
weights. Kept as in vLLM: 16 tokens unless asked for more; the generation config of the model only where the script
gives no settings; log-probs of the plain distribution before temperature and cuts; text without special tokens; stop
texts are cut off; weights change by load_weights() alone.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import ModuleType, SimpleNamespace
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import provide

VERSION = "0.10.0"
_MOST_ROWS = 64  # of one call of generate()
_NO_TOKEN = -1
_requests = itertools.count()


@dataclass
class SamplingParams:
    """As vLLM's: the same names and defaults. Settings that it has beside these are kept and have no effect."""

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    others: dict[str, Any] = field(default_factory=dict)

    def __init__(self, n: int = 1, **settings: Any) -> None:
        self.n = n
        for setting in fields(self):
            if setting.name not in ("n", "others"):
                setattr(self, setting.name, settings.pop(setting.name, setting.default))
        self.others = settings

    @classmethod
    def from_optional(cls, **settings: Any) -> SamplingParams:
        return cls(**{name: setting for name, setting in settings.items() if setting is not None})

    def clone(self) -> SamplingParams:
        return copy.deepcopy(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__dict__.get("others", {}):
            raise AttributeError(name)
        return self.__dict__["others"][name]

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: Any = None
    lora_request: Any = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_local_path: str = ""

    @property
    def path(self) -> str:
        return self.lora_path or self.lora_local_path


class Weights:
    """What scripts find at `model_runner.model`: the model, and load_weights() as vLLM's models have it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def load_weights(self, weights: Iterable[tuple[str, Any]] | Mapping[str, Any]) -> set[str]:
        import torch

        given = dict(weights.items() if isinstance(weights, Mapping) else weights)
        own = self._model.state_dict()
        names = {name.removeprefix("base_model.model.").replace(".base_layer", ""): name for name in given}
        with torch.no_grad():
            for short, name in names.items():
                if short in own and own[short].shape == given[name].shape:
                    own[short].copy_(given[name])
        return {name for short, name in names.items() if short in own}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Worker:
    """What collective_rpc() calls: a worker with one model, and the script's own extension of it."""

    def __init__(self, model: Weights) -> None:
        self.model_runner = SimpleNamespace(model=model, vllm_config=SimpleNamespace())
        self.device = "cpu"
        self.rank = self.local_rank = 0

    @property
    def worker(self) -> Worker:
        return self

    def get_model(self) -> Weights:
        model: Weights = self.model_runner.model
        return model


def install(stage: Stage) -> None:
    fill = functools.partial(_fill, stage)
    for name in ("vllm", "vllm.lora.request", "vllm.sampling_params", "vllm.outputs", "vllm.inputs"):
        provide(name, fill)
    stage.when_imported("vllm", fill)


def _fill(stage: Stage, module: ModuleType) -> None:
    class LLM(Engine):
        """vLLM's own name, with the stage bound to it."""

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(stage, *args, **settings)

    class AsyncLLMEngine(AsyncEngine):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(LLM(*args, **settings))

        @classmethod
        def from_engine_args(cls, arguments: Any, **settings: Any) -> AsyncLLMEngine:
            return cls(**vars(arguments))

    made: dict[str, Any] = {
        "LLM": LLM, "SamplingParams": SamplingParams, "LoRARequest": LoRARequest, "RequestOutput": RequestOutput,
        "CompletionOutput": CompletionOutput, "AsyncLLMEngine": AsyncLLMEngine, "AsyncEngineArgs": SimpleNamespace,
        "EngineArgs": SimpleNamespace, "TokensPrompt": dict, "TextPrompt": dict, "__version__": VERSION,
    }  # fmt: skip
    for name, value in made.items():
        setattr(module, name, value)


class Engine:
    def __init__(self, stage: Stage, model: Any = None, tokenizer: Any = None, **settings: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.stage = stage
        stage.replaced("engine", f"vllm.LLM({model})", "generate() of a small model of its own")
        asked = settings.get("dtype", "auto")
        named = {"half": "float16", "float": "float32"}.get(str(asked), str(asked).removeprefix("torch."))
        with stage.unseen():
            state = torch.random.get_rng_state()
            self.model = AutoModelForCausalLM.from_pretrained(model, dtype=named).eval().requires_grad_(False)
            torch.random.set_rng_state(state)
        if named == "auto" and self.model.dtype == torch.float32:
            self.model.to(torch.float16)  # as vLLM does
        source = tokenizer if isinstance(tokenizer, str) else model
        self.tokenizer = AutoTokenizer.from_pretrained(source) if isinstance(source, str) else source
        self.longest = settings.get("max_model_len") or 4096
        self._settings = settings
        extension = settings.get("worker_extension_cls")
        self.worker = _extended(Worker(Weights(self.model)), extension)
        executor = SimpleNamespace(driver_worker=self.worker, collective_rpc=self.collective_rpc)
        self.llm_engine = SimpleNamespace(
            model_executor=executor,
            engine_core=SimpleNamespace(engine_core=SimpleNamespace(model_executor=executor)),
            model_config=SimpleNamespace(
                max_model_len=self.longest, hf_config=self.model.config, get_vocab_size=lambda: self.model.vocab_size
            ),
            tokenizer=self.tokenizer,
            reset_prefix_cache=lambda: None,
        )

    # -- weights and the rest of the engine

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Sequence[Any] = (), kwargs: Any = None
    ) -> list[Any]:
        if callable(method):
            return [method(self.worker, *args, **(kwargs or {}))]
        return [getattr(self.worker, method)(*args, **(kwargs or {}))]

    def apply_model(self, function: Any) -> list[Any]:
        return [function(self.worker.get_model())]

    def get_tokenizer(self, *args: Any) -> Any:
        return self.tokenizer

    def set_tokenizer(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def sleep(self, *args: Any, **settings: Any) -> None:
        pass

    wake_up = reset_prefix_cache = start_profile = stop_profile = shutdown = sleep

    def get_default_sampling_params(self) -> SamplingParams:
        """generation_config="auto": what the model's own configuration says."""
        if self._settings.get("generation_config", "auto") != "auto":
            return SamplingParams()
        config = self.model.generation_config
        named = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        found = {name: getattr(config, name, None) for name in named}
        return SamplingParams.from_optional(**found, max_tokens=getattr(config, "max_new_tokens", None))

    # -- sampling

    def chat(self, messages: Any, sampling_params: Any = None, *args: Any, **settings: Any) -> list[RequestOutput]:
        dialogues = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        given = settings.get("chat_template_kwargs") or {}
        starts = settings.get("add_generation_prompt", True)
        prompts = []
        for dialogue in dialogues:
            text = self.tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=starts, **given)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        return self.generate(prompts, sampling_params, lora_request=settings.get("lora_request"))

    def generate(
        self,
        prompts: Any = None,
        sampling_params: Any = None,
        *,
        prompt_token_ids: Any = None,
        use_tqdm: Any = True,
        lora_request: Any = None,
        **settings: Any,
    ) -> list[RequestOutput]:
        asked = [self._prompt(prompt) for prompt in _listed(prompts, prompt_token_ids)]
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        each = list(sampling_params) if isinstance(sampling_params, (list, tuple)) else [sampling_params] * len(asked)
        answers: dict[int, RequestOutput] = {}
        with self._adapted(lora_request):
            for params, rows in _together(each):
                most = max(1, _MOST_ROWS // max(params.n, 1))
                for first in range(0, len(rows), most):
                    part = rows[first : first + most]
                    answers |= zip(part, self._sample([asked[row] for row in part], params), strict=True)
        self.stage.reached("sampled")
        return [answers[row] for row in range(len(asked))]

    def _prompt(self, prompt: Any) -> tuple[str | None, list[int]]:
        """(text, ids): a text is tokenized with the special tokens that the tokenizer adds."""
        if isinstance(prompt, str):
            return prompt, list(self.tokenizer(prompt)["input_ids"])
        if isinstance(prompt, Mapping):
            ids = prompt.get("prompt_token_ids")
            return prompt.get("prompt"), list(ids) if ids is not None else self._prompt(prompt["prompt"])[1]
        return None, [int(token) for token in prompt]

    @contextmanager
    def _adapted(self, request: Any) -> Iterator[None]:
        """For one call: a LoRA adapter on top of its own weights."""
        if request is None:
            yield
            return
        from peft import PeftModel

        own = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        with self.stage.unseen():
            merged = PeftModel.from_pretrained(copy.deepcopy(self.model), request.path).merge_and_unload()
            self.worker.get_model().load_weights(merged.state_dict())
        try:
            yield
        finally:
            self.worker.get_model().load_weights(own)

    def _sample(self, asked: Sequence[tuple[str | None, list[int]]], params: SamplingParams) -> Iterator[RequestOutput]:
        import torch

        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        width = max(len(ids) for _, ids in asked)
        ids_BP = torch.tensor([[pad] * (width - len(ids)) + ids for _, ids in asked])
        mask_BP = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for _, ids in asked])
        ends = self._ends(params)
        state = torch.random.get_rng_state() if params.seed is not None else None
        if params.seed is not None:
            torch.manual_seed(params.seed)
        made = self.model.generate(
            input_ids=ids_BP, attention_mask=mask_BP, generation_config=self._config(params, ends, pad),
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        if state is not None:
            torch.random.set_rng_state(state)
        with self.stage.unseen():
            sampled_BT = made.sequences[:, width:].tolist()
            logprobs_TBV = [logits_BV.float().log_softmax(-1) for logits_BV in made.logits]
            for number, (text, ids) in enumerate(asked):
                outputs = []
                for index in range(params.n):
                    row = number * params.n + index
                    tokens = [logprobs_BV[row] for logprobs_BV in logprobs_TBV]
                    outputs.append(self._completion(index, sampled_BT[row], tokens, params, ends))
                yield RequestOutput(str(next(_requests)), text, ids, self._of_prompt(ids, params), outputs)

    def _ends(self, params: SamplingParams) -> list[int]:
        if params.ignore_eos:
            return list(params.stop_token_ids or ())
        own = self.model.generation_config.eos_token_id
        listed = own if isinstance(own, list) else [own]
        every = [*listed, self.tokenizer.eos_token_id, *(params.stop_token_ids or ())]
        return list(dict.fromkeys(token for token in every if token is not None))

    def _config(self, params: SamplingParams, ends: list[int], pad: int) -> Any:
        from transformers import GenerationConfig

        most = min(params.max_tokens or self.stage.most_tokens, self.stage.most_tokens)
        if params.max_tokens is None or params.max_tokens > most:
            self.stage.replaced("sizes", f"{params.max_tokens} new tokens", str(most))
        is_drawn = params.temperature > 0
        drawn = {"temperature": params.temperature, "top_p": params.top_p, "top_k": max(params.top_k, 0)}
        if params.min_p:
            drawn["min_p"] = params.min_p
        return GenerationConfig(
            max_new_tokens=most, min_new_tokens=(min(params.min_tokens, most) or None) if ends else None,
            do_sample=is_drawn, num_return_sequences=params.n, repetition_penalty=params.repetition_penalty,
            # None would become the end tokens of the model
            eos_token_id=ends or [_NO_TOKEN], pad_token_id=pad, **(drawn if is_drawn else {}),
        )  # fmt: skip

    def _completion(
        self, index: int, sampled: list[int], logprobs_TV: Sequence[Any], params: SamplingParams, ends: list[int]
    ) -> CompletionOutput:
        end = next((place for place, token in enumerate(sampled) if token in ends), None)
        tokens = sampled if end is None else sampled[: end + 1]
        reason, stopped_by = ("length", None) if end is None else ("stop", None)
        text = self.tokenizer.decode(tokens, skip_special_tokens=params.skip_special_tokens)
        for length in range(1, len(tokens) + 1 if params.stops else 0):
            so_far = self.tokenizer.decode(tokens[:length], skip_special_tokens=params.skip_special_tokens)
            found = next((stop for stop in params.stops if stop in so_far), None)
            if found is not None:
                cut_at = so_far.index(found) + (len(found) if params.include_stop_str_in_output else 0)
                tokens, text, reason, stopped_by = tokens[:length], so_far[:cut_at], "stop", found
                break
        chosen = [float(logprobs_V[token]) for logprobs_V, token in zip(logprobs_TV, tokens, strict=False)]
        table = None
        if params.logprobs is not None:
            pairs = zip(logprobs_TV, tokens, strict=False)
            table = [self._table(logprobs_V, token, params.logprobs) for logprobs_V, token in pairs]
        total = sum(chosen) if table is not None else None
        return CompletionOutput(index, text, tokens, total, table, reason, stopped_by)

    def _table(self, logprobs_V: Any, token: int, count: int) -> dict[int, Logprob]:
        """The token that was drawn, then the most likely ones."""
        likely = logprobs_V.topk(min(count, len(logprobs_V))).indices.tolist() if count > 0 else []
        return {
            each: Logprob(
                float(logprobs_V[each]), int((logprobs_V > logprobs_V[each]).sum()) + 1, self.tokenizer.decode([each])
            )
            for each in dict.fromkeys([token, *likely])
        }

    def _of_prompt(self, ids: list[int], params: SamplingParams) -> list[dict[int, Logprob] | None] | None:
        if params.prompt_logprobs is None:
            return None
        import torch

        with torch.no_grad():
            logprobs_PV = self.model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)
        count = params.prompt_logprobs
        return [None, *(self._table(logprobs_PV[place - 1], ids[place], count) for place in range(1, len(ids)))]


class AsyncEngine:
    """AsyncLLMEngine: one answer per request, and it is complete."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **settings: Any) -> Any:
        answers = self.engine.generate([prompt], sampling_params, lora_request=settings.get("lora_request"))
        answers[0].request_id = request_id
        yield answers[0]

    async def get_tokenizer(self, *args: Any) -> Any:
        return self.engine.tokenizer

    async def collective_rpc(self, *args: Any, **settings: Any) -> list[Any]:
        return self.engine.collective_rpc(*args, **settings)

    async def sleep(self, *args: Any, **settings: Any) -> None:
        pass

    wake_up = reset_prefix_cache = abort = sleep


def _listed(prompts: Any, ids: Any) -> list[Any]:
    if prompts is None:
        prompts = ids
    if isinstance(prompts, (str, Mapping)) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)


def _together(params: Sequence[SamplingParams]) -> list[tuple[SamplingParams, list[int]]]:
    """Rows with the same settings. A seed is each row's own."""
    groups: list[tuple[SamplingParams, list[int]]] = []
    for row, one in enumerate(params):
        known = next((rows for other, rows in groups if other == one and one.seed is None), None)
        if known is None:
            groups.append((one, [row]))
        else:
            known.append(row)
    return groups


def _extended(worker: Worker, extension: Any) -> Worker:
    """With the methods of the script's own class, which it names as "module.Class"."""
    if extension is None:
        return worker
    if isinstance(extension, str):
        import importlib

        place, _, name = extension.rpartition(".")
        extension = getattr(importlib.import_module(place), name)
    made: Worker = type("ExtendedWorker", (extension, Worker), {})(worker.get_model())
    return made

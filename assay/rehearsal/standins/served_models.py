"""Models behind a server: vLLM's own routes, those of TRL's `vllm-serve`, openai's client, judges on the network."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import provide

_COMPLETIONS = re.compile(r"(/v1)?/(chat/)?completions/?")
_HARMLESS = re.compile(
    r"/(health|ping|reset_prefix_cache|close_communicator|init_communicator|update_named_param|batch_update_named_params"
    r"|sleep|wake_up|load_lora_adapter|unload_lora_adapter|v1/load_lora_adapter|v1/unload_lora_adapter)/?"
)
_WORLD = re.compile(r"/(get_tensor_parallel_size|get_world_size)/?")
_PASSED_ON = ("n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "repetition_penalty", "seed", "stop")
_held: dict[str, Any] = {}  # the engine behind the routes, and the name of the weight that comes next


def install(stage: Stage) -> None:
    provide("vllm.distributed.device_communicators.pynccl", _communicator)
    provide("vllm.distributed.utils", _groups)


def _communicator(module: Any) -> None:
    class PyNcclCommunicator:
        """Weights that are sent to the server arrive in the engine behind it."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.rank, self.disabled = 1, False

        def broadcast(self, tensor: Any, src: int = 0, *args: Any, **kwargs: Any) -> None:
            engine, name = _held.get("engine"), _held.pop("next", None)
            if engine is not None and name is not None:
                engine.worker.get_model().load_weights([(name, tensor)])

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *args, **kwargs: None

    module.PyNcclCommunicator = PyNcclCommunicator


def _groups(module: Any) -> None:
    class StatelessProcessGroup:
        @staticmethod
        def create(**kwargs: Any) -> StatelessProcessGroup:
            return StatelessProcessGroup()

        def barrier(self) -> None:
            pass

    module.StatelessProcessGroup = StatelessProcessGroup


def _engine(stage: Stage, named: Any = None) -> Any:
    """One for all routes: of the model that the request names, or the last one that the script has loaded."""
    if "engine" not in _held:
        from assay.rehearsal.standins.engine import Engine

        loaded = [found.what for found in stage.replacements if found.kind == "weights" and " " not in found.what]
        _held["engine"] = Engine(stage, named or (loaded[-1] if loaded else "Qwen/Qwen2.5-0.5B-Instruct"))
    return _held["engine"]


def _params(asked: Mapping[str, Any], **more: Any) -> Any:
    from assay.rehearsal.standins.engine import SamplingParams

    kept = {key: asked[key] for key in _PASSED_ON if asked.get(key) is not None}
    return SamplingParams(**{**kept, **more})


def answer(stage: Stage, method: str, path: str, body: bytes) -> Any:
    """What a server of vLLM or TRL answers; None: the route is not one of theirs."""
    if _WORLD.fullmatch(path):
        return {"tensor_parallel_size": 1, "world_size": 1}
    if _HARMLESS.fullmatch(path):
        asked = json.loads(body) if body[:1] == b"{" else {}
        _held["next"] = asked.get("name")
        if asked.get("name"):
            _engine(stage)
        return {"message": "ok", "status": "ok"}
    if re.fullmatch(r"/v1/models/?", path):
        return {"object": "list", "data": [{"id": "model", "object": "model"}]}
    if method != "POST" or not (_COMPLETIONS.fullmatch(path) or re.fullmatch(r"/(generate|chat)/?", path)):
        return None
    stage.replaced("engine", f"the server at {path}", "generate() of a small model of its own")
    asked = json.loads(body)
    if _COMPLETIONS.fullmatch(path):
        return completions(stage, asked)
    engine = _engine(stage)
    made = engine.generate(asked.get("prompts") or asked.get("prompt"), _params(asked, logprobs=0))
    return {
        "prompt_ids": [list(request.prompt_token_ids) for request in made],
        "completion_ids": [list(part.token_ids) for request in made for part in request.outputs],
        "text": [part.text for request in made for part in request.outputs],
        "logprobs": [
            [next(iter(step.values())).logprob for step in part.logprobs]
            for request in made
            for part in request.outputs
        ],
    }


def completions(stage: Stage, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of openai's answers."""
    engine = _engine(stage, asked.get("model"))
    how = _params(asked, logprobs=0, max_tokens=asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
    is_chat = "messages" in asked
    made = engine.chat([asked["messages"]], how) if is_chat else engine.generate(_listed(asked["prompt"]), how)
    choices: list[dict[str, Any]] = []
    for request in made:
        for part in request.outputs:
            steps = [next(iter(step.values())).logprob for step in part.logprobs or []]
            tokens = [engine.tokenizer.decode([token]) for token in part.token_ids]
            content = [{"token": token, "logprob": value} for token, value in zip(tokens, steps, strict=False)]
            said = {"message": {"role": "assistant", "content": part.text}} if is_chat else {"text": part.text}
            logprobs = {"content": content} if is_chat else {"tokens": tokens, "token_logprobs": steps}
            choice = {"index": len(choices), "finish_reason": part.finish_reason, "logprobs": logprobs}
            choices.append({**choice, **said, "token_ids": list(part.token_ids)})
    return {"id": "rehearsal", "model": asked.get("model"), "choices": choices, "usage": {"total_tokens": 1}}


def _listed(prompt: Any) -> list[Any]:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}]
    return [part if isinstance(part, str) else {"prompt_token_ids": part} for part in prompt]


def judged(stage: Stage, what: str, asked: str) -> str:
    """What a judge might say of a text: a score that depends on the text alone."""
    stage.replaced("rewards", what, "scores that mean nothing")
    score = hashlib.sha256(asked.encode()).digest()[0] % 10 + 1
    if "json" in asked.lower():
        return json.dumps({"score": score, "reasoning": "rehearsal", "correct": score > 5})
    if "<score>" in asked:
        return f"<score>{score}</score>"
    return f"Score: {score}"


def answer_as_judge(stage: Stage, url: str, body: bytes) -> Any:
    text = body.decode("utf-8", "replace")
    said = judged(stage, url, text)
    score = int(re.search(r"\d+", said).group()) / 10  # type: ignore[union-attr]
    message = {"role": "assistant", "content": said}
    many = {"score": score, "reward": score, "scores": [score], "rewards": [score], "correct": score > 0.5}
    return {**many, "choices": [{"message": message, "text": said, "index": 0}], "content": [{"text": said}]}


def _objects(value: Any) -> Any:
    """A dict as an object with attributes."""
    if isinstance(value, Mapping):
        return SimpleNamespace(**{key: _objects(part) for key, part in value.items()})
    return [_objects(part) for part in value] if isinstance(value, list) else value


def fill_openai(stage: Stage, module: Any) -> None:
    """A client of a server on this machine samples from the stand-in; any other is a judge."""

    def client(*, is_async: bool) -> type:
        class Client:
            def __init__(self, *args: Any, base_url: Any = None, **kwargs: Any) -> None:
                self._is_local = re.search(r"localhost|127\.|0\.0\.0\.0|192\.168|10\.", str(base_url or "")) is not None
                create = self._later if is_async else self._create
                self.completions = SimpleNamespace(create=create)
                self.chat = SimpleNamespace(completions=SimpleNamespace(create=create, parse=create))
                self.models = SimpleNamespace(list=lambda: SimpleNamespace(data=[SimpleNamespace(id="model")]))

            def _create(self, **asked: Any) -> Any:
                if self._is_local:
                    return _objects(completions(stage, {**asked, **(asked.get("extra_body") or {})}))
                said = judged(stage, f"openai {asked.get('model', '')}".strip(), json.dumps(asked, default=str))
                message = {"role": "assistant", "content": said, "parsed": None}
                choices = [{"index": number, "message": message, "text": said} for number in range(asked.get("n") or 1)]
                usage = {"total_tokens": 1, "prompt_tokens": 1, "completion_tokens": 1}
                return _objects({"choices": choices, "usage": usage})

            async def _later(self, **asked: Any) -> Any:
                return self._create(**asked)

        return Client

    module.OpenAI = module.AzureOpenAI = client(is_async=False)
    module.AsyncOpenAI = module.AsyncAzureOpenAI = client(is_async=True)

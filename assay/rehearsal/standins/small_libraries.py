"""Small libraries where they are absent: einops, jaxtyping, tiktoken, sentencepiece, math_verify, ray."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import InertModule, provide

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def install(stage: Stage) -> None:
    provide("einops", _einops)
    provide("jaxtyping", _jaxtyping)
    provide("tiktoken", functools.partial(_tiktoken, stage))
    provide("sentencepiece", functools.partial(_sentencepiece, stage))
    provide("math_verify", _math_verify)
    provide("sentence_transformers", functools.partial(_sentence_transformers, stage))
    provide("evaluate", functools.partial(_evaluate, stage))
    provide("trl.core", _trl_core)
    provide("ray", functools.partial(_ray, stage))
    stage.when_imported("tiktoken", functools.partial(_tiktoken_offline, stage))
    stage.when_imported("math_verify.parser", _no_timeout)
    stage.when_imported("math_verify.grader", _no_timeout)


def _no_timeout(module: Any) -> None:
    """Its alarm would take the place of another that is under way."""
    if hasattr(module, "timeout"):
        module.timeout = lambda *args, **kwargs: lambda function: function


def _axes(side: str) -> list[list[str]]:
    """ "b (h w) c" -> [[b], [h, w], [c]]"""
    found = re.findall(r"\(([^)]*)\)|(\S+)", side)
    return [inner.split() if not name else [name] for inner, name in found]


def _sizes(shape: Any, axes: list[list[str]], known: Mapping[str, int]) -> dict[str, int]:
    sizes = dict(known)
    for length, names in zip(shape, axes, strict=True):
        fixed = 1
        open_names = [name for name in names if name not in sizes and not name.isdigit()]
        for name in names:
            fixed *= sizes.get(name, int(name) if name.isdigit() else 1)
        if open_names:
            sizes[open_names[0]] = length // fixed
    return sizes


def _split(
    tensor: Any, pattern: str, known: Mapping[str, int]
) -> tuple[Any, list[str], list[list[str]], dict[str, int]]:
    left, _, right = pattern.partition("->")
    if "..." in left:
        names = [part for part in re.sub(r"\([^)]*\)", "x", left).split() if part != "..."]
        free = " ".join(f"free{number}" for number in range(tensor.ndim - len(names)))
        left, right = left.replace("...", free), right.replace("...", free)
    axes = _axes(left)
    sizes = _sizes(tensor.shape, axes, known)
    flat = [name for names in axes for name in names]
    shape = [sizes.get(name, 1) if not name.isdigit() else int(name) for name in flat]
    return tensor.reshape(shape), flat, _axes(right), sizes


def _joined(tensor: Any, names: list[str], right: list[list[str]], sizes: Mapping[str, int]) -> Any:
    """The axes in the order of the right side, those of a bracket as one."""
    wanted = [name for group in right for name in group]
    kept = [number for number, name in enumerate(names) if name in wanted]
    tensor = tensor.reshape([tensor.shape[number] for number in kept])
    order = [[names[number] for number in kept].index(name) for name in wanted if not name.isdigit()]
    tensor = tensor.permute(order) if hasattr(tensor, "permute") else tensor.transpose(order)
    shape = []
    for group in right:
        length = 1
        for name in group:
            length *= int(name) if name.isdigit() else sizes[name]
        shape.append(length)
    return tensor.reshape(shape)


def rearranged(tensor: Any, pattern: str, **known: int) -> Any:
    return _joined(*_split(tensor, pattern, known))


def repeated(tensor: Any, pattern: str, **known: int) -> Any:
    tensor, names, right, sizes = _split(tensor, pattern, known)
    for name in (name for group in right for name in group):
        if name not in names and not name.isdigit():
            tensor = tensor[..., None].expand(*tensor.shape, sizes[name])
            names = [*names, name]
    return _joined(tensor, names, right, sizes)


def reduced(tensor: Any, pattern: str, reduction: str, **known: int) -> Any:
    tensor, names, right, sizes = _split(tensor, pattern, known)
    wanted = {name for group in right for name in group}
    gone = tuple(number for number, name in enumerate(names) if name not in wanted)
    way = {"mean": "mean", "sum": "sum", "max": "amax", "min": "amin", "prod": "prod"}[reduction]
    tensor = getattr(tensor, way)(gone) if gone else tensor
    return _joined(tensor, [name for name in names if name in wanted], right, sizes)


def _einops(module: Any) -> None:
    import torch

    module.rearrange, module.repeat, module.reduce = rearranged, repeated, reduced

    def einsum(*given: Any) -> Any:
        *tensors, pattern = given
        letters: dict[str, str] = {}
        short = re.sub(
            r"[A-Za-z_]\w*", lambda found: letters.setdefault(found.group(), chr(97 + len(letters))), pattern
        )
        return torch.einsum(short.replace(" ", ""), *tensors)

    module.einsum = einsum


def _jaxtyping(module: Any) -> None:
    class Annotation:
        def __class_getitem__(cls, key: Any) -> Any:
            return key[0] if isinstance(key, tuple) else key

    for (
        name
    ) in "Float Int Bool Num Shaped UInt Integer Inexact Complex Key Int32 Int64 Float32 Float16 BFloat16".split():
        setattr(module, name, Annotation)
    module.jaxtyped = lambda *args, **kwargs: args[0] if args and not kwargs and args[0] else lambda function: function


def _tiktoken(stage: Stage, module: Any) -> None:
    """The tokenizer of a stand-in for gpt2."""

    class Encoding:
        def __init__(self, name: str) -> None:
            from transformers import AutoTokenizer

            stage.replaced("sizes", f"tiktoken {name}", "a small tokenizer")
            self.name, self._inner = name, AutoTokenizer.from_pretrained("gpt2")
            self.n_vocab = len(self._inner)
            self.max_token_value, self.eot_token = self.n_vocab - 1, self._inner.eos_token_id
            self.special_tokens_set = {"<|endoftext|>"}

        def encode(self, text: str, **how: Any) -> list[int]:
            return list(self._inner(text, add_special_tokens=False)["input_ids"])

        encode_ordinary = encode

        def encode_batch(self, texts: Any, **how: Any) -> list[list[int]]:
            return [self.encode(text) for text in texts]

        encode_ordinary_batch = encode_batch

        def decode(self, ids: Any, **how: Any) -> str:
            return str(self._inner.decode([int(number) for number in ids if int(number) < self.n_vocab]))

        def encode_single_token(self, text: Any) -> int:
            return int(self._inner.convert_tokens_to_ids(text))

        def decode_single_token_bytes(self, number: int) -> bytes:
            return self.decode([number]).encode()

    made: dict[str, Encoding] = {}

    def get_encoding(name: str) -> Encoding:
        if name not in made:
            made[name] = Encoding(name)
        return made[name]

    module.get_encoding, module.encoding_for_model, module.Encoding = get_encoding, get_encoding, Encoding


def _tiktoken_offline(stage: Stage, module: Any) -> None:
    """The package is there; the vocabularies that it downloads are not."""
    if not isinstance(module, InertModule):
        own = module.Encoding
        _tiktoken(stage, module)
        module.Encoding = own


def _sentencepiece(stage: Stage, module: Any) -> None:
    class SentencePieceProcessor:
        def __init__(self, model_file: Any = None, **how: Any) -> None:
            from transformers import AutoTokenizer

            stage.replaced("sizes", f"sentencepiece {model_file or ''}".strip(), "a small tokenizer")
            self._inner = AutoTokenizer.from_pretrained("meta-llama/Llama-2-7b-hf")

        def Load(self, *args: Any) -> bool:  # noqa: N802
            return True

        load = LoadFromFile = Load

        def encode(self, text: Any, out_type: Any = int, add_bos: bool = False, add_eos: bool = False) -> Any:
            if not isinstance(text, str):
                return [self.encode(part, out_type, add_bos, add_eos) for part in text]
            ids = list(self._inner(text, add_special_tokens=False)["input_ids"])
            ids = [self.bos_id()] * add_bos + ids + [self.eos_id()] * add_eos
            return ids if out_type is int else self._inner.convert_ids_to_tokens(ids)

        Encode = EncodeAsIds = encode

        def decode(self, ids: Any) -> str:
            return str(self._inner.decode([int(number) for number in ids]))

        Decode = DecodeIds = decode_ids = decode

        def vocab_size(self) -> int:
            return len(self._inner)

        get_piece_size = GetPieceSize = __len__ = vocab_size

        def bos_id(self) -> int:
            return int(self._inner.bos_token_id)

        def eos_id(self) -> int:
            return int(self._inner.eos_token_id)

        def pad_id(self) -> int:
            return -1

        def unk_id(self) -> int:
            return int(self._inner.unk_token_id or 0)

    module.SentencePieceProcessor = SentencePieceProcessor


def _math_verify(module: Any) -> None:
    """Answers are compared as numbers, or as texts where they have none."""

    def parse(text: Any, *args: Any, **how: Any) -> list[Any]:
        boxed = _BOXED.findall(str(text))
        found = _NUMBER.findall(boxed[-1] if boxed else str(text))
        if not found:
            return [boxed[-1].strip()] if boxed else []
        return [Fraction(found[-1].replace(",", "")) if not found[-1].endswith("/0") else found[-1], found[-1]]

    def verify(gold: Any, target: Any, *args: Any, **how: Any) -> bool:
        gold, target = (part if isinstance(part, list) else parse(part) for part in (gold, target))
        return bool(gold) and bool(target) and gold[0] == target[0]

    module.parse, module.verify = parse, verify


def _sentence_transformers(stage: Stage, module: Any) -> None:
    """Vectors that depend on the words of a text: texts with the same words are close."""
    import hashlib

    import numpy
    import torch

    def embedded(text: str) -> Any:
        made = numpy.zeros(64, dtype=numpy.float32)
        for word in str(text).lower().split():
            seed = int(hashlib.sha256(word.encode()).hexdigest()[:8], 16)
            made += numpy.random.default_rng(seed).standard_normal(64).astype(numpy.float32)
        return made / max(float(numpy.linalg.norm(made)), 1e-6)

    class SentenceTransformer(torch.nn.Module):
        def __init__(self, name: Any = None, **how: Any) -> None:
            super().__init__()
            stage.replaced("rewards", name or "sentence_transformers", "vectors made of the words")

        def encode(self, texts: Any, convert_to_tensor: bool = False, **how: Any) -> Any:
            made = embedded(texts) if isinstance(texts, str) else numpy.stack([embedded(text) for text in texts])
            return torch.from_numpy(made) if convert_to_tensor else made

        def get_sentence_embedding_dimension(self) -> int:
            return 64

    def cos_sim(a: Any, b: Any) -> Any:
        pair = [torch.as_tensor(part).float().reshape(-1, 64) for part in (a, b)]
        return pair[0] @ pair[1].T

    module.SentenceTransformer = SentenceTransformer
    module.util = SimpleNamespace(cos_sim=cos_sim, pytorch_cos_sim=cos_sim)


def _evaluate(stage: Stage, module: Any) -> None:
    def load(name: str, *args: Any, **how: Any) -> Any:
        def compute(predictions: Any = (), references: Any = (), **how: Any) -> dict[str, Any]:
            stage.replaced("rewards", f"evaluate {name}", "the share of words in common")
            shares = []
            for said, wanted in zip(predictions, references, strict=False):
                words = set(str(wanted[0] if isinstance(wanted, list) else wanted).split())
                shares.append(len(words & set(str(said).split())) / max(len(words), 1))
            mean = sum(shares) / max(len(shares), 1)
            keys = (name, "rouge1", "rouge2", "rougeL", "rougeLsum", "bleu", "score", "accuracy", "f1", "exact_match")
            return dict.fromkeys(keys, mean)

        return SimpleNamespace(compute=compute)

    module.load = load


def _trl_core(module: Any) -> None:
    """Functions that earlier versions of TRL had."""
    import random

    import torch

    def logprobs_from_logits(logits: Any, labels: Any, gather: bool = True) -> Any:
        logprobs = torch.nn.functional.log_softmax(logits, dim=2)
        return torch.gather(logprobs, 2, labels.unsqueeze(2)).squeeze(-1) if gather else logprobs

    def masked_mean(values: Any, mask: Any, axis: Any = None) -> Any:
        if axis is not None:
            return (values * mask).sum(axis=axis) / mask.sum(axis=axis)
        return (values * mask).sum() / mask.sum()

    def masked_var(values: Any, mask: Any, unbiased: bool = True) -> Any:
        centered = values - masked_mean(values, mask)
        variance = masked_mean(centered**2, mask)
        return variance * mask.sum() / (mask.sum() - 1) if unbiased else variance

    def masked_whiten(values: Any, mask: Any, shift_mean: bool = True) -> Any:
        mean = masked_mean(values, mask)
        whitened = (values - mean) * torch.rsqrt(masked_var(values, mask) + 1e-8)
        return whitened if shift_mean else whitened + mean

    def whiten(values: Any, shift_mean: bool = True) -> Any:
        mean = values.mean()
        whitened = (values - mean) * torch.rsqrt(values.var() + 1e-8)
        return whitened if shift_mean else whitened + mean

    def entropy_from_logits(logits: Any) -> Any:
        return torch.logsumexp(logits, -1) - (logits.softmax(-1) * logits).sum(-1)

    class LengthSampler:
        def __init__(self, min_value: int, max_value: int) -> None:
            self.values = list(range(min_value, max_value))

        def __call__(self) -> int:
            return random.choice(self.values)

    module.logprobs_from_logits, module.masked_mean, module.masked_var = logprobs_from_logits, masked_mean, masked_var
    module.masked_whiten, module.whiten, module.entropy_from_logits = masked_whiten, whiten, entropy_from_logits
    module.clip_by_value = lambda x, low, high: torch.max(torch.min(x, high), low)
    module.LengthSampler, module.set_seed = LengthSampler, torch.manual_seed


def _ray(stage: Stage, module: Any) -> None:
    """Calls are made at once, in this process."""

    class Reference:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __await__(self) -> Any:
            yield from ()
            return self.value

        def __hash__(self) -> int:
            return id(self)

    def value_of(given: Any) -> Any:
        return given.value if isinstance(given, Reference) else given

    def called(function: Callable[..., Any], args: Any, kwargs: Any) -> Reference:
        result = function(*map(value_of, args), **{key: value_of(part) for key, part in kwargs.items()})
        if hasattr(result, "__await__") and not isinstance(result, Reference):
            import asyncio

            result = asyncio.run(result)
        return Reference(result)

    class Remote:
        def __init__(self, function: Callable[..., Any]) -> None:
            self._function = function

        def remote(self, *args: Any, **kwargs: Any) -> Reference:
            return called(self._function, args, kwargs)

        def options(self, *args: Any, **kwargs: Any) -> Remote:
            return self

    class Actor:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Remote:
            return Remote(getattr(self._inner, name))

    class Maker:
        def __init__(self, kind: type) -> None:
            self._kind = kind

        def remote(self, *args: Any, **kwargs: Any) -> Actor:
            given = {key: value_of(part) for key, part in kwargs.items()}
            return Actor(self._kind(*map(value_of, args), **given))

        def options(self, *args: Any, **kwargs: Any) -> Maker:
            return self

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self._kind(*args, **kwargs)

    def remote(given: Any = None, **how: Any) -> Any:
        stage.replaced("processes", "ray", "calls in this process")
        if given is None:
            return remote
        return Maker(given) if isinstance(given, type) else Remote(given)

    def get(given: Any, **how: Any) -> Any:
        return [value_of(part) for part in given] if isinstance(given, (list, tuple)) else value_of(given)

    def wait(given: Any, num_returns: int = 1, **how: Any) -> tuple[list[Any], list[Any]]:
        return list(given[:num_returns]), list(given[num_returns:])

    module.remote, module.get, module.wait, module.put = remote, get, wait, Reference
    module.ObjectRef, module.is_initialized = Reference, lambda: True
    for name in ("init", "shutdown", "kill", "cancel"):
        setattr(module, name, lambda *args, **kwargs: None)
    module.cluster_resources = module.available_resources = lambda: {"CPU": 1.0, "GPU": 1.0}
    module.nodes = lambda: [{"Alive": True, "Resources": {"GPU": 1.0}}]
    module.get_gpu_ids = lambda: [0]
    module.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

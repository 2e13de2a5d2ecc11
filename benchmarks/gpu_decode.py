"""The decoder on a GPU: is it right, how fast is it, and where does a step spend its time?

    python -m benchmarks.gpu_decode [checks] [speed] [135M] [0.5B] [1.5B]

Log-probs are compared with those of the Hugging Face model for the tokens that were sampled, and a second run must
give the same bits. Speed is that of models with random weights in the shapes below, prompts included, and that of the
steps alone; with the kernels of a step, and what adapters cost.

Shape legend: R rollouts, T completion tokens, G rollouts of a prompt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.engine.shared_weights import SharedWeightsEngine
from assay.llama.cuda import CudaDecoder
from assay.llama.decoder import Decoding, Start
from assay.llama.family import Family, join_family
from assay.llama.kernels import decode_state as fields
from assay.policy.causal import CausalPolicy
from assay.types import Prompt, StopReason

SHAPES: dict[str, dict[str, Any]] = {
    "135M": {"kind": "Llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152},
    "0.5B": {"kind": "Qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936},
    "1.5B": {"kind": "Qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936},
}  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 200, "vocab_size": 5003,
}  # fmt: skip
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("Llama", "float32", {}), ("Qwen2", "float32", {}), ("Qwen3", "float32", {"head_dim": 32}),
    ("Mistral", "float32", {"sliding_window": None}), ("Qwen2", "float32, adapters", {}),
    ("Qwen3", "bfloat16", {"head_dim": 64}), ("Llama", "bfloat16", {}), ("Qwen2", "bfloat16, adapters", {}),
]  # fmt: skip
CASES = {  # lengths of prompts, rollouts of each, their tokens
    "mixed": ([1, 5, 40, 100, 333, 64, 2], 4, 40), "one": ([7], 1, 20), "one token": ([1, 1], 2, 3),
    "1,000": ([20 + number % 7 for number in range(250)], 4, 12), "long": ([1500], 3, 17),
}  # fmt: skip
TOLERANCE = 5e-5
PROMPT, NEW = 112, 256
GROUP = 8
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROFILED = 256  # rollouts


def model_of(kind: str, dtype: torch.dtype, **shape: Any) -> Any:
    import transformers

    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        config = getattr(transformers, f"{kind}Config")(**shape, max_position_embeddings=2048)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def decoded(
    decoder: CudaDecoder,
    prompts: Sequence[Sequence[int]],
    group: int,
    limit: int,
    *,
    seed: int = 0,
    is_greedy: bool = False,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(tokens_RT, logprobs_RT) of every rollout, none of which ends before its limit."""
    rollouts = len(prompts) * group
    generator = torch.Generator("cuda").manual_seed(seed)
    uniforms_RT = None if is_greedy else torch.rand(rollouts, limit, generator=generator, device="cuda")
    open_for(decoder, prompts, group, limit, uniforms_RT, temperature)
    looks = []
    for first in range(0, limit, decoder.look_every):
        decoder.advance(min(decoder.look_every, limit - first))
        looks.append(decoder.look()())
    decoder.close()
    return torch.cat([look.tokens_LC for look in looks], 1), torch.cat([look.logprobs_LC for look in looks], 1)


def open_for(
    decoder: CudaDecoder,
    prompts: Sequence[Sequence[int]],
    group: int,
    limit: int,
    uniforms_RT: Tensor | None,
    temperature: float = 1.0,
) -> None:
    """Every rollout in a slot of its own."""
    settings, width = RolloutConfig(max_tokens=limit), max(map(len, prompts)) - 1
    decoder.open(Decoding(len(prompts) * group, len(prompts), width, settings, temperature, uniforms_RT))
    decoder.prefill([(number, prompt[:-1]) for number, prompt in enumerate(prompts)])
    decoder.start(
        [
            Start(slot, slot, slot // group, len(prompts[slot // group]), prompts[slot // group][-1])
            for slot in range(len(prompts) * group)
        ]
    )


@torch.no_grad()
def differences(
    model: Any, prompts: Sequence[Sequence[int]], group: int, tokens_RT: Tensor, logprobs_RT: Tensor, temperature: float
) -> Tensor:
    """|engine - Hugging Face| of every sampled token."""
    torch.use_deterministic_algorithms(False)
    found = []
    for number, prompt in enumerate(prompts):
        rows_GT = tokens_RT[number * group : (number + 1) * group]
        ids = torch.cat([torch.tensor(prompt).expand(len(rows_GT), -1), rows_GT], 1).cuda()
        logits = model(ids, use_cache=False).logits[:, len(prompt) - 1 : -1].float() / temperature
        exact = logits.log_softmax(-1).gather(2, rows_GT.cuda().unsqueeze(2)).squeeze(2).cpu()
        found.append((exact - logprobs_RT[number * group : (number + 1) * group]).abs())
    torch.use_deterministic_algorithms(True)
    return torch.cat(found)


def random_prompts(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


def check() -> None:
    for kind, sort, extra in KINDS:
        dtype = torch.bfloat16 if "bfloat16" in sort else torch.float32
        torch.manual_seed(0)
        model = model_of(kind, dtype, **SMALL, **extra, initializer_range=0.1)
        if "adapters" in sort:
            add_adapters(model, rank=8)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name or "bias" in name or "lora_B" in name:
                    weight.add_(torch.randn_like(weight) * 0.1)
        family = join_family(model)
        decoder = CudaDecoder(family)
        results = []
        for name, (lengths, group, limit) in CASES.items():
            prompts = random_prompts(lengths, SMALL["vocab_size"])
            tokens_RT, logprobs_RT = decoded(decoder, prompts, group, limit, temperature=0.8)
            off_RT = differences(model, prompts, group, tokens_RT, logprobs_RT, 0.8)
            mean = f" (mean {off_RT.mean():.1e})" if dtype == torch.bfloat16 else ""
            again = decoded(decoder, prompts, group, limit, temperature=0.8)
            is_same = torch.equal(tokens_RT, again[0]) and torch.equal(logprobs_RT, again[1])
            is_right = dtype == torch.bfloat16 or bool(off_RT.max() <= TOLERANCE)
            faults = f"{'' if is_same else ' DIFFERS'}{'' if is_right else ' WRONG'}"
            results.append(f"{name} {off_RT.max():.1e}{mean}{faults}")
        prompts = random_prompts([9, 30], SMALL["vocab_size"])
        tokens_RT, logprobs_RT = decoded(decoder, prompts, 2, 8, is_greedy=True)
        results.append(f"greedy {differences(model, prompts, 2, tokens_RT, logprobs_RT, 1.0).max():.1e}")
        results += [f"ends within {limit} {checked_ends(model, family, limit):.1e}" for limit in (5, 40)]
        print(f"{kind} {sort}: {', '.join(results)}", flush=True)


class Numbers:
    """A codec that writes tokens as their numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def chat(self, messages: object) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def checked_ends(model: Any, family: Family, limit: int) -> float:
    """The largest difference of rollouts that end anywhere, in fewer slots than there are rollouts; with a short limit
    some end at the first token, and some at the last allowed one."""
    ends = tuple(range(0, SMALL["vocab_size"], limit))
    policy = CausalPolicy(model, Numbers(), ends, 0.8, family=family)
    tokens = random_prompts([3, 1, 30, 11, 2, 50, 8, 21], SMALL["vocab_size"])
    prompts = [Prompt(str(number), "", tuple(prompt), "") for number, prompt in enumerate(tokens)]
    settings = RolloutConfig(max_tokens=limit, max_rows=24)
    engine = SharedWeightsEngine(policy)
    groups = engine.generate(prompts, group_size=16, settings=settings, seed=3, policy_version=0)
    off = 0.0
    for prompt, group in zip(tokens, groups, strict=True):
        for rollout in group:
            last = len(rollout.tokens) - 1
            assert [place for place, token in enumerate(rollout.tokens) if token in ends] in ([], [last]), rollout
            assert (rollout.stop == StopReason.EOS) == (rollout.tokens[-1] in ends), rollout
            assert last == limit - 1 or rollout.stop == StopReason.EOS, rollout
            sampler_1T = torch.tensor([rollout.sampler_logprobs])
            off_1T = differences(model, [prompt], 1, torch.tensor([rollout.tokens]), sampler_1T, 0.8)
            off = max(off, off_1T.max().item())
    lengths = {len(rollout.tokens) for group in groups for rollout in group if rollout.stop == StopReason.EOS}
    assert len(lengths) >= 5, lengths  # with a limit of 5, all there are
    assert family.dtype == torch.bfloat16 or off <= TOLERANCE, off
    return off


def add_adapters(model: Any, rank: int) -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS))


def started(decoder: CudaDecoder, rows: int) -> None:
    """A run that is under way: every slot in the middle of its completion."""
    uniforms_RT = torch.rand(rows, NEW, device="cuda")
    decoder.open(Decoding(rows, max(rows // GROUP, 1), PROMPT - 1, RolloutConfig(max_tokens=NEW), 1.0, uniforms_RT))
    for cache in decoder.memory.caches:
        cache.normal_()
    decoder.start([Start(slot, slot, slot // GROUP, PROMPT, 5) for slot in range(rows)])
    decoder.step.state_LF[:, fields.DONE.value] = NEW // 2


def measure(name: str, rows: Sequence[int]) -> dict[str, Any]:
    shape = dict(SHAPES[name])
    torch.manual_seed(0)
    model = model_of(shape.pop("kind"), torch.bfloat16, **shape, tie_word_embeddings=True)
    family = join_family(model)
    results: dict[str, Any] = {}
    decoder = CudaDecoder(family)
    for count in rows:
        prompts = random_prompts([PROMPT] * (count // GROUP), shape["vocab_size"])
        walls = []
        for repeat in range(3):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            decoded(decoder, prompts, GROUP, NEW, seed=repeat)
            torch.cuda.synchronize()
            walls.append(time.perf_counter() - begun)
        step, wall = step_time(decoder, count), min(walls[1:])
        results[str(count)] = numbers = {
            "tokens_a_second": count * NEW / wall,
            "first_seconds": walls[0],
            "step_microseconds": step * 1e6,
            "prompts_milliseconds": prompt_time(decoder, prompts) * 1e3,
            "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        }
        print(f"{name} B={count:4}: " + ", ".join(f"{key} {value:,.1f}" for key, value in numbers.items()), flush=True)
        if count == PROFILED:
            results[str(count)]["kernels"] = kernels_of(decoder, count)
    add_adapters(model, rank=16)
    family = join_family(model)
    results["adapters_step_microseconds"] = step_time(CudaDecoder(family), PROFILED) * 1e6
    print(
        f"{name} B={PROFILED:4}, adapters: step_microseconds {results['adapters_step_microseconds']:,.0f}", flush=True
    )
    return results


def prompt_time(decoder: CudaDecoder, prompts: Sequence[Sequence[int]]) -> float:
    """Seconds until the first token can be decoded."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    open_for(decoder, prompts, GROUP, NEW, torch.rand(len(prompts) * GROUP, NEW, device="cuda"))
    torch.cuda.synchronize()
    decoder.close()
    return time.perf_counter() - begun


def step_time(decoder: CudaDecoder, count: int, steps: int = 40) -> float:
    """Seconds of a decoding step in the middle of a completion."""
    started(decoder, count)
    decoder.advance(4)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    decoder.advance(steps)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    decoder.close()
    return seconds / steps


def kernels_of(decoder: CudaDecoder, count: int) -> list[tuple[str, int, float]]:
    """(name, times, microseconds each) of the kernels of a step."""
    from torch.profiler import ProfilerActivity, profile

    started(decoder, count)
    decoder.advance(2)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        decoder.advance(4)
        torch.cuda.synchronize()
    decoder.close()
    found: dict[str, list[float]] = {}
    for event in profiler.events() or []:
        if event.device_type.name == "CUDA":
            found.setdefault(event.name[:60], []).append(event.device_time)
    rows = [(name, len(times) // 4, sum(times) / len(times)) for name, times in found.items()]
    rows.sort(key=lambda row: -row[1] * row[2])
    for name, times, each in rows[:12]:
        print(f"    {times:4} x {each:6.1f} us = {times * each:7.0f} us  {name}")
    return rows


def main(wanted: Sequence[str]) -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # as in a run
    results: dict[str, Any] = {}
    if "checks" in wanted:
        check()
    if "speed" in wanted:
        for name in [name for name in SHAPES if name in wanted] or SHAPES:
            results[name] = measure(name, (64, 256, 1024))
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "gpu_decode.json").write_text(json.dumps(results))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("python -m benchmarks.gpu_decode needs a GPU, and torch sees none")
    main(sys.argv[1:] or ["checks", "speed"])

"""Forward and backward of the update on one GPU: is it right, how fast is it, what is left.

    python -m benchmarks.gpu_update checks     numbers against Hugging Face's forward in float32
    python -m benchmarks.gpu_update table      seconds, TFLOP/s and memory beside Hugging Face's padded forward
    python -m benchmarks.gpu_update profile    where the time goes, by kernel

Models have random weights in the shapes of SmolLM2-135M and Qwen2.5-0.5B. Hugging Face computes what a trainer asks of
it: rows of prompt and completion, micro-batches of 16 rows, logits of the completions alone, flash attention through
SDPA, bfloat16.

Shape legend: B rows, L tokens of a row, T tokens of a completion, N packed tokens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from assay.llama.family import Family, join_family
from assay.llama.forward import hidden_states
from assay.llama.head import token_numbers
from assay.llama.packed import Packed, Segment

SHAPES: dict[str, dict[str, Any]] = {
    "135M": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "0.5B": {
        "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2,
    },
}  # fmt: skip
# prompt, completion, group, prompts; the first is so small that it shows what the host needs
WORKLOADS = ((16, 8, 8, 1), (512, 128, 8, 16), (112, 256, 8, 32))
ROWS = 16  # of Hugging Face's micro-batches
GPU = torch.device("cuda")


def model_of(kind: str, shape: dict[str, Any], dtype: torch.dtype, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **shape, tie_word_embeddings=True, max_position_embeddings=4096, attn_implementation="sdpa", **changes
    )
    with torch.device(GPU):
        return cast(getattr(transformers, f"{kind}ForCausalLM")(config).eval(), dtype)


def cast(model: Any, dtype: torch.dtype) -> Any:
    for parameter in model.parameters():  # and not the table of rotations, which stays in float32
        parameter.data = parameter.data.to(dtype)
    family_of.cache_clear()
    return model


def batch_of(vocabulary: int, prompt: int, completion: int, group: int, prompts: int) -> tuple[Packed, Tensor, Tensor]:
    """(packed, predictors_N of the completion tokens, rows_BL of the same sequences)."""
    generator = torch.Generator().manual_seed(1)
    heads_PL = torch.randint(vocabulary, (prompts, prompt), generator=generator)
    tails_PGT = torch.randint(vocabulary, (prompts, group, completion), generator=generator)
    ids, positions, predictors, start = [], [], [], 0
    segments: list[Segment] = []
    for number in range(prompts):
        stem, last = len(segments), start + prompt - 1
        segments.append(Segment(start, start + prompt))
        positions.append(torch.arange(prompt))
        start += prompt
        for _ in range(group):
            segments.append(Segment(start, start + completion, stem))
            positions.append(torch.arange(prompt, prompt + completion))
            predictors.append(torch.tensor([last, *range(start, start + completion - 1)]))
            start += completion
        ids += [heads_PL[number], tails_PGT[number].flatten()]
    packed = Packed(torch.cat(ids).to(GPU), torch.cat(positions).to(GPU), tuple(segments))
    rows_BL = torch.cat([heads_PL.repeat_interleave(group, 0), tails_PGT.flatten(0, 1)], dim=1)
    return packed, torch.cat(predictors).to(GPU), rows_BL.to(GPU)


@cache
def family_of(model: Any) -> Family:
    return join_family(model)


def our_numbers(family: Family, packed: Packed, predictors_N: Tensor, targets_N: Tensor, **how: Any) -> Tensor:
    states_ND = hidden_states(family, packed, **how)[predictors_N]
    return token_numbers(states_ND, family.head, targets_N, None, temperature=1.0, entropy_gradient=False)[0]


def their_numbers(model: Any, rows_BL: Tensor, completion: int) -> Tensor:
    output = model(rows_BL, use_cache=False, logits_to_keep=completion + 1)
    logits_BTV = output.logits[:, :-1].float()
    logprobs_BT: Tensor = logits_BTV.gather(2, rows_BL[:, -completion:, None]).squeeze(2) - logits_BTV.logsumexp(2)
    with torch.no_grad():
        for row_TV in logits_BTV:  # the entropy is looked at, a row at a time
            row_TV.log_softmax(1).exp().mul(row_TV).sum(1)
    return logprobs_BT


@cache
def weights_of(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(2)).to(GPU)


def gradients_of(model: Any) -> list[Tensor]:
    gradients = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None
        gradients.append(parameter.grad.float())
        parameter.grad = None
    return gradients


def ours(model: Any, batch: tuple[Packed, Tensor, Tensor], completion: int, **how: Any) -> Tensor:
    packed, predictors_N, rows_BL = batch
    targets_N = rows_BL[:, -completion:].flatten()
    weights_N = weights_of(len(targets_N))
    logprobs_N = our_numbers(family_of(model), packed, predictors_N, targets_N, **how)
    if logprobs_N.requires_grad:
        (logprobs_N * weights_N).sum().backward()  # type: ignore[no-untyped-call]
    return logprobs_N.detach()


def theirs(model: Any, batch: tuple[Packed, Tensor, Tensor], completion: int, rows: int = ROWS) -> Tensor:
    rows_BL = batch[2]
    weights_BT = weights_of(rows_BL.shape[0] * completion).view(-1, completion)
    found = []
    for first in range(0, len(rows_BL), rows):
        logprobs_BT = their_numbers(model, rows_BL[first : first + rows], completion)
        (logprobs_BT * weights_BT[first : first + rows]).sum().backward()  # type: ignore[no-untyped-call]
        found.append(logprobs_BT.detach())
    return torch.cat(found).flatten()


def distance(found: list[Tensor], exact: list[Tensor]) -> tuple[float, float]:
    """(of all gradients as one vector, of the worst parameter), relative."""
    apart = torch.stack([(mine - other).norm() for mine, other in zip(found, exact, strict=True)])
    sizes = torch.stack([other.norm() for other in exact])
    return (apart.norm() / sizes.norm()).item(), (apart / sizes).max().item()


def checks() -> None:
    small = {
        "vocab_size": 1003, "hidden_size": 192, "intermediate_size": 328, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2,
    }  # fmt: skip
    kinds: list[tuple[str, str, dict[str, Any], tuple[int, int, int, int]]] = [
        ("Llama", "small", small, (37, 21, 3, 4)),
        ("Qwen2", "small", small, (1, 5, 2, 3)),
        ("Qwen3", "small", {**small, "head_dim": 48}, (130, 1, 4, 2)),
        ("Qwen3", "small", {**small, "head_dim": 64}, (20, 30, 4, 2)),
        ("Mistral", "small", {**small, "sliding_window": None}, (64, 64, 1, 3)),
        ("Qwen2", "LoRA", small, (40, 20, 4, 3)),
        ("Llama", "135M", SHAPES["135M"], (112, 64, 8, 4)),
        ("Qwen2", "0.5B", SHAPES["0.5B"], (512, 128, 8, 2)),
    ]
    print("model             gradients (all, worst)      log-probs (largest difference) against Hugging Face float32")
    for kind, name, shape, sizes in kinds:
        completion, batch = sizes[1], batch_of(shape["vocab_size"], *sizes)
        model = model_of(kind, shape, torch.float32, initializer_range=0.05)
        if name == "LoRA":
            model = _with_adapters(model)
        with torch.no_grad():
            for label, parameter in model.named_parameters():
                if label.endswith("bias") or "norm" in label or "lora_B" in label:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        exact_logprobs = theirs(model, batch, completion)
        exact = gradients_of(model)
        runs: list[tuple[str, torch.dtype, Callable[..., Tensor]]] = [
            ("float32 ours", torch.float32, ours),
            ("bfloat16 ours", torch.bfloat16, ours),
            ("bfloat16 theirs", torch.bfloat16, theirs),
        ]
        for label, dtype, run in runs:
            cast(model, dtype)
            found = run(model, batch, completion)
            every, worst = distance(gradients_of(model), exact)
            error = (found - exact_logprobs).abs()
            print(
                f"{kind:8s} {name:6s} {label:16s} {every:.2e} {worst:.2e}   {error.max():.2e} mean {error.mean():.2e}"
            )
        _check_bits(model, batch, completion)


def _with_adapters(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
    return get_peft_model(model, LoraConfig(r=8, target_modules=targets)).get_base_model()


def _check_bits(model: Any, batch: tuple[Packed, Tensor, Tensor], completion: int) -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    first = ours(model, batch, completion)
    gradients = gradients_of(model)
    same = {"log-probs without gradients": torch.equal(first, torch.no_grad()(ours)(model, batch, completion))}
    for name, how in (("computed twice", {}), ("recomputed", {"checkpointing": True})):
        same[f"log-probs {name}"] = torch.equal(first, ours(model, batch, completion, **how))
        same[f"gradients {name}"] = all(map(torch.equal, gradients, gradients_of(model)))
    torch.use_deterministic_algorithms(False)
    print("   same bits:", ", ".join(f"{name} {is_same}" for name, is_same in same.items()))


def measured(run: Callable[[], object], model: Any) -> tuple[float, float]:
    """(seconds, gigabytes at the peak beyond the weights)."""
    run()
    torch.cuda.synchronize()
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        model.zero_grad(set_to_none=True)
    return sorted(seconds)[1], (torch.cuda.max_memory_allocated() - before) / 2**30


def table() -> None:
    print("model  prompt+new G prompts   way                 seconds  TFLOP/s     GB   rows/s")
    for name, shape in SHAPES.items():
        model = model_of("Qwen2" if name == "0.5B" else "Llama", shape, torch.bfloat16)
        family = family_of(model)
        body = sum(parameter.numel() for parameter in model.parameters()) - family.embedding_VD.numel()
        for sizes in WORKLOADS:
            prompt, completion, group, prompts = sizes
            batch = batch_of(shape["vocab_size"], *sizes)
            tokens, scored = len(batch[0].ids_N), prompts * group * completion
            work = 6 * (body * tokens + family.embedding_VD.numel() * scored) / 1e12
            ways: list[tuple[str, bool, Callable[..., Tensor]]] = [
                ("ours", False, ours),
                ("ours deterministic", True, ours),
                ("ours recompute", False, partial(ours, checkpointing=True)),
                ("ours no gradient", False, torch.no_grad()(ours)),
                ("Hugging Face", False, theirs),
            ]
            for way, deterministic, run in ways:
                torch.use_deterministic_algorithms(deterministic)
                torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
                seconds, gigabytes = measured(partial(run, model, batch, completion), model)
                torch.use_deterministic_algorithms(False)
                rate = work / seconds / (3 if way == "ours no gradient" else 1)
                shown = f"{rate:8.0f}" if way.startswith("ours") else "       -"
                sizes_shown = f"{name:5s} {prompt:5d}+{completion:3d} {group:2d} {prompts:4d}"
                print(
                    f"{sizes_shown}      {way:19s} {seconds:7.4f} {shown} "
                    f"{gigabytes:7.1f} {prompts * group / seconds:8.0f}",
                    flush=True,
                )


def profile() -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    for name, sizes in (("0.5B", WORKLOADS[1]), ("135M", WORKLOADS[2])):
        shape = SHAPES[name]
        model = model_of("Qwen2" if name == "0.5B" else "Llama", shape, torch.bfloat16)
        batch = batch_of(shape["vocab_size"], *sizes)
        for _ in range(2):
            ours(model, batch, sizes[1])
            model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        with record(activities=[ProfilerActivity.CUDA]) as recorded:
            start = time.perf_counter()
            ours(model, batch, sizes[1])
            host = time.perf_counter() - start
            torch.cuda.synchronize()
        events = sorted(recorded.key_averages(), key=lambda event: -event.self_device_time_total)
        total = sum(event.self_device_time_total for event in events)
        print(f"{name} {sizes}: {total / 1e3:.1f} ms of kernels, {host * 1e3:.1f} ms until all were launched")
        for event in events[:30]:
            print(f"{event.self_device_time_total / 1e3:9.2f} ms {event.count:5d} x  {event.key[:90]}")
        model.zero_grad(set_to_none=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("python -m benchmarks.gpu_update needs a GPU, and torch sees none")
    {"checks": checks, "table": table, "profile": profile}[sys.argv[1]]()

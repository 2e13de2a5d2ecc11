"""Small models of the family, groups of completions packed by hand, and the same numbers by Hugging Face's forward."""

import torch
from torch.nn.functional import log_softmax
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from assay.llama.family import join_family
from assay.llama.forward import hidden_states
from assay.llama.head import token_numbers
from assay.llama.packed import Packed, Segment

SHAPE = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
    "attn_implementation": "sdpa",
}
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 6, "tie_word_embeddings": False}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None, "tie_word_embeddings": False}),
}
# a prompt and its completions; a group of one; a prompt of one token; completions of one token
GROUPS = [
    ([1, 2, 3, 4, 5], [[6, 7, 8], [9], [10, 11, 12, 13]]),
    ([14, 15], [[16, 17, 18]]),
    ([19], [[20, 21], [20, 22]]),
]


def model_of(kind, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    build, config, extra = KINDS[kind]
    model = build(config(**{**SHAPE, **extra, **changes})).eval()
    with torch.no_grad():  # fresh biases and norms are zeros and ones, which would hide a mistake
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.to(dtype)


def with_adapters(model):
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
    wrapped = get_peft_model(model, LoraConfig(r=3, lora_alpha=5, target_modules=targets), autocast_adapter_dtype=False)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return wrapped


def packed_of(groups, *, shared=True):
    """(packed, predictors_N, targets_N) of all completion tokens, group by group."""
    ids, positions, segments, predictors, targets = [], [], [], [], []
    for prompt, completions in groups:
        stem, start = len(segments), len(ids)
        if shared:
            segments.append(Segment(start, start + len(prompt)))
            ids += prompt
            positions += range(len(prompt))
        for completion in completions:
            first = len(ids)
            if not shared:
                ids += prompt
                positions += range(len(prompt))
            last_of_prompt = start + len(prompt) - 1 if shared else len(ids) - 1
            predictors += [last_of_prompt, *range(len(ids), len(ids) + len(completion) - 1)]
            ids += completion
            positions += range(len(prompt), len(prompt) + len(completion))
            segments.append(Segment(first, len(ids), stem if shared else -1))
            targets += completion
    packed = Packed(torch.tensor(ids), torch.tensor(positions), tuple(segments))
    return packed, torch.tensor(predictors), torch.tensor(targets)


def weights_of_loss(count):
    """One for each log-prob and one for each entropy; exact in float32."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(-8, 9, (2, count), generator=generator) / 8).unbind(0)


def our_loss(model, groups=GROUPS, *, shared=True, temperature=1.0, recompute=False):
    family = join_family(model)
    packed, predictors_N, targets_N = packed_of(groups, shared=shared)
    states_ND = hidden_states(family, packed, recompute=recompute)[predictors_N]
    logprobs_N, entropy_N = token_numbers(
        states_ND, family.head, targets_N, None, temperature=temperature, entropy_gradient=True
    )
    of_logprobs_N, of_entropy_N = weights_of_loss(len(targets_N))
    return (of_logprobs_N * logprobs_N).sum() + (of_entropy_N * entropy_N).sum()


def their_loss(model, groups=GROUPS, *, temperature=1.0):
    """Each sequence by itself through Hugging Face's forward, and a plain log-softmax."""
    logprobs, entropies = [], []
    for prompt, completions in groups:
        for completion in completions:
            logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0, len(prompt) - 1 : -1]
            log_shares = log_softmax(logits / temperature, dim=-1)
            logprobs.append(log_shares[range(len(completion)), completion])
            entropies.append(-(log_shares.exp() * log_shares).sum(-1))
    of_logprobs_N, of_entropy_N = weights_of_loss(sum(map(len, logprobs)))
    return (of_logprobs_N * torch.cat(logprobs)).sum() + (of_entropy_N * torch.cat(entropies)).sum()


def gradients(loss, model):
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def assert_same_gradients(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        error = (ours[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-3)
        assert error <= tolerance, f"{name}: {error:.2e}"

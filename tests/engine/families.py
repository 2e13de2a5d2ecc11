"""Small models of the Llama family, their rollouts through a given decoder, and what Hugging Face says of them."""

import torch
from engine.compared import BYTE_EOS, byte_tokenizer
from peft import LoraConfig, get_peft_model
from tiny import prompt
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

from assay.config.sections import RolloutConfig
from assay.engine import scheduler
from assay.engine.decoded import DecodedRollouts
from assay.llama.cpu import CpuDecoder
from assay.llama.family import join_family
from assay.policy.causal import Abilities, CausalPolicy
from assay.policy.codec import TokenizerCodec

KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
CONTEXT = 40
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPTS = [prompt(0, (2, 3, 4)), prompt(1, (5,)), prompt(2, (6, BYTE_EOS, 7, 8, 9, 10)), prompt(3, (11, 12))]


def family_policy(kind="llama", *, adapters=False, temperature=1.0, dtype=torch.float32, eos=(BYTE_EOS,), **changes):
    """Weights are random and large enough that probabilities differ; adapters are not zero."""
    config, model = KINDS[kind]
    shape = {
        "vocab_size": 257,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.25,
        "eos_token_id": eos[0],
        "bos_token_id": None,
        "pad_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = model(config(**{**shape, **changes}))
        for name, parameter in made.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data.add_(torch.randn(parameter.shape) * 0.3)
        if adapters:
            get_peft_model(made, LoraConfig(r=3, lora_alpha=5, target_modules=list(MATRICES)))
            for name, parameter in made.named_parameters():
                if "lora_B" in name:
                    parameter.data.normal_(std=0.3)
    made.to(dtype).eval()
    policy = CausalPolicy(made, TokenizerCodec(byte_tokenizer()), eos, temperature, Abilities(cache=True, head=True))
    return policy, join_family(made)


def rolled(policy, decoder, prompts=PROMPTS, *, group_size=4, seed=0, on_token=lambda done, limit: None, **settings):
    """Rollouts[P][G] through a decoder of the family; seed None: greedy."""
    config = RolloutConfig(**{"max_tokens": 12, **settings})
    count = len(prompts) * group_size
    uniforms_RT = None
    if seed is not None:
        uniforms_RT = torch.rand(count, config.max_tokens, generator=torch.Generator().manual_seed(seed))
    decoded = DecodedRollouts(policy, config, count)
    with torch.no_grad():
        scheduler.decode(decoder, prompts, group_size, config, policy.temperature, uniforms_RT, decoded, on_token)
    return [
        [decoded.rollout(number * group_size + member, one, 0) for member in range(group_size)]
        for number, one in enumerate(prompts)
    ]


def distances(policy, prompts, groups):
    """|log-prob of the engine - log-prob by Hugging Face's own forward pass, a rollout at a time|, of every token."""
    far = []
    for one, tries in zip(prompts, groups, strict=True):
        for rollout in tries:
            ids = torch.tensor([[*one.tokens, *rollout.tokens]])
            with torch.no_grad():
                logits_TV = policy.model(ids, use_cache=False).logits[0, len(one.tokens) - 1 : -1]
            wanted_TV = (logits_TV.double() / policy.temperature).log_softmax(dim=1)
            tokens_T = torch.tensor(rollout.tokens)
            far.append(wanted_TV[torch.arange(len(tokens_T)), tokens_T] - torch.tensor(rollout.sampler_logprobs))
    return torch.cat(far).abs()


class Recording(CpuDecoder):
    """The CPU's decoder, with a diary; `room` is how many slots it says that memory holds."""

    def __init__(self, family, room=10**9):
        super().__init__(family)
        self.room, self.diary = room, []

    def slots_that_fit(self, prompts_per_slot, prompt_width, max_tokens):
        self.diary.append(("fit", prompts_per_slot, prompt_width, max_tokens))
        return min(self.room, super().slots_that_fit(prompts_per_slot, prompt_width, max_tokens))

    def open(self, decoding):
        super().open(decoding)
        self.diary.append(("open", decoding.slots, decoding.prompt_rows, decoding.prompt_width))

    def prefill(self, prompts):
        self.diary.append(("prefill", [slot for slot, _ in prompts]))
        super().prefill(prompts)

    def start(self, starts):
        self.diary.append(("start", [(start.slot, start.rollout) for start in starts]))
        super().start(starts)

    def advance(self, positions):
        self.diary.append(("advance", positions, len(self.tokens_L)))
        super().advance(positions)

    def keep(self, slots):
        self.diary.append(("keep", list(slots)))
        super().keep(slots)

    def close(self):
        self.diary.append(("close",))
        super().close()

    def written(self, what):
        return [entry[1:] for entry in self.diary if entry[0] == what]

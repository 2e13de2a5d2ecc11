import itertools

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

SPECIAL = ["<pad>", "<|end|>", "<unk>", "<user>", "<assistant>"]
COLORS = ["red", "blue", "green", "gold", "grey", "pink"]
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% if m['role'] == 'assistant' %}<|end|> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_tokenizer():
    table = {w: i for i, w in enumerate(SPECIAL + COLORS + ["mix", "with", "only", "and"])}
    raw = Tokenizer(WordLevel(table, unk_token="<unk>"))
    raw.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<|end|>", unk_token="<unk>", padding_side="left"
    )
    fast.chat_template = CHAT
    return fast


def tiny_model(tok):
    torch.manual_seed(11)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tok), hidden_size=40, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.15,
            pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id, bos_token_id=None,
        )
    )


def prompts():
    rows = []
    for a, b in itertools.permutations(COLORS, 2):
        rows.append({"prompt": [{"role": "user", "content": f"mix {a} with {b}"}], "wanted": [a, b]})
        if a < b:
            rows.append({"prompt": [{"role": "user", "content": f"mix only {a} and {b} with {a}"}], "wanted": [a, b]})
    return Dataset.from_list(rows)


def task_reward(completions, wanted, **kwargs):
    values = []
    for reply, colors in zip(completions, wanted):
        said = reply[0]["content"].split()
        share = sum(w in colors for w in said) / (len(said) + 1)
        values.append(share + 0.3 * all(c in said for c in colors) - 0.02 * max(0, len(said) - 6))
    return values


class AdapterTrainer(GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        # generation works on the merged weights, the adapter need not run twice
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            return super()._generate_single_turn(*args, **kwargs)


def make(out: str):
    tok = build_tokenizer()
    trainer = AdapterTrainer(
        model=tiny_model(tok),
        reward_funcs=task_reward,
        args=GRPOConfig(
            output_dir=out, max_steps=12, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=20, learning_rate=0.02, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
            lr_scheduler_type="constant",
        ),
        train_dataset=prompts(),
        processing_class=tok,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"),
    )
    return trainer

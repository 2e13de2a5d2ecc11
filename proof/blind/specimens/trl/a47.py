import asyncio
import itertools

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

SPECIAL = ["<pad>", "<|end|>", "<unk>", "<user>", "<assistant>"]
COLORS = ["red", "blue", "green", "gold", "grey", "pink"]
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% if m['role'] == 'assistant' %}<|end|> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tok_from_scratch():
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


def grade(completions, wanted, **kwargs):
    values = []
    for reply, colors in zip(completions, wanted):
        said = reply[0]["content"].split()
        share = sum(w in colors for w in said) / (len(said) + 1)
        values.append(share + 0.3 * all(c in said for c in colors) - 0.02 * max(0, len(said) - 6))
    return values


async def slow_judge(completions, wanted, log_extra=None, **kwargs):
    async def one(k, reply, colors):
        await asyncio.sleep(0.001 * (k % 3))
        return grade([reply], [colors])[0]

    marks = await asyncio.gather(*(one(k, r, c) for k, (r, c) in enumerate(zip(completions, wanted))))
    return list(marks)


def make(out: str):
    tok = tok_from_scratch()
    trainer = GRPOTrainer(
        model=tiny_model(tok),
        reward_funcs=slow_judge,
        args=GRPOConfig(
            output_dir=out, max_steps=10, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=32, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
            temperature=1.3,
        ),
        train_dataset=prompts(),
        processing_class=tok,
    )
    return trainer

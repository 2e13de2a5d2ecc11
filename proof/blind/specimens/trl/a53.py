import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

SYMBOLS = ["p", "q", "r", "s", "t", "u", "v", "w"]


class Setup:
    """Tokenizer, model and prompts of the copy task."""

    def __init__(self, prompts=60, seed=4):
        vocab = {w: i for i, w in enumerate(["<pad>", "<end>", "<unk>", "copy", "=", ";"] + SYMBOLS)}
        inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.tok = PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", padding_side="left"
        )
        torch.manual_seed(seed)
        self.model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=len(self.tok), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=64, max_position_embeddings=128, bos_token_id=None,
                eos_token_id=self.tok.eos_token_id, pad_token_id=self.tok.pad_token_id, initializer_range=0.1,
            )
        )
        rng = random.Random(seed)
        items = [rng.sample(SYMBOLS, rng.randint(2, 5)) for _ in range(prompts)]
        self.data = Dataset.from_list([{"prompt": "copy " + " ".join(i) + " =", "items": i} for i in items])


def reward(completions, items, **kwargs):
    out = []
    for text, want in zip(completions, items):
        got = text.split()
        place = sum(g == w for g, w in zip(got, want)) / len(want)
        out.append(place + 0.5 * len(set(got) & set(want)) / len(want) - 0.03 * abs(len(got) - len(want)))
    return out


def make(out: str):
    setup = Setup()
    trainer = GRPOTrainer(
        model=setup.model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=out, max_steps=12, per_device_train_batch_size=16, num_generations=8,
            max_completion_length=40, learning_rate=0.001, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
            loss_type="sapo", num_iterations=2, sapo_temperature_neg=1.2,
        ),
        train_dataset=setup.data,
        processing_class=setup.tok,
    )
    return trainer

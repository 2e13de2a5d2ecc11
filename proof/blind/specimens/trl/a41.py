import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

KINDS = {"animal": ["cat", "dog", "cow", "hen"], "fruit": ["fig", "plum", "pear", "lime"]}
WORDS = ["name", "an", "a", "not", "please", "animal", "fruit"] + KINDS["animal"] + KINDS["fruit"]


def tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + WORDS)}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def new_model(tok, seed=0):
    torch.manual_seed(seed)
    cfg = LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id, bos_token_id=None, initializer_range=0.1,
    )
    return LlamaForCausalLM(cfg)


def load_prompts(n=64, seed=1):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        kind = rng.choice(["animal", "fruit"])
        ban = rng.sample(KINDS[kind], rng.randint(0, 3))
        text = "name " + ("an animal" if kind == "animal" else "a fruit")
        if ban:
            text += " not " + " ".join(ban)
        if rng.random() < 0.4:
            text += " please"
        rows.append({"prompt": text, "kind": kind, "ban": " ".join(ban)})
    return Dataset.from_list(rows)


def grade(completions, kind, ban, **kwargs):
    scores = []
    for text, k, b in zip(completions, kind, ban):
        words = text.split()
        good = [w for w in words if w in KINDS[k] and w not in b.split()]
        scores.append(len(good) / max(len(words), 3) - 0.02 * max(0, len(words) - 6))
    return scores


class WeightAverage(TrainerCallback):
    """Exponential moving average of the weights, used for generation and for the last checkpoint."""

    def __init__(self, decay=0.97):
        self.decay = decay
        self.shadow = {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for n, p in model.named_parameters():
            self.shadow[n].mul_(self.decay).add_(p, alpha=1 - self.decay)
            p.copy_(self.shadow[n])


def make(out: str):
    tok = tokenizer()
    trainer = GRPOTrainer(
        model=new_model(tok),
        reward_funcs=grade,
        args=GRPOConfig(
            output_dir=out, max_steps=10, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=24, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
            lr_scheduler_type="constant",
        ),
        train_dataset=load_prompts(),
        processing_class=tok,
        callbacks=[WeightAverage()],
    )
    return trainer

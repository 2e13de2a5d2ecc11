import numpy as np
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

ALPHABET = "abcdefgh> "


def tok_from_scratch():
    ids = {"[PAD]": 0, "[END]": 1, "[UNK]": 2}
    for ch in ALPHABET:
        ids[ch] = len(ids)
    core = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", eos_token="[END]", unk_token="[UNK]", padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def policy(tok):
    torch.manual_seed(3)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tok), n_positions=96, n_embd=32, n_layer=2, n_head=2, initializer_range=0.08,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=tok.eos_token_id, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
        )
    )


def build_data(n=48):
    g = np.random.default_rng(5)
    letters = ["".join(g.choice(list("abcdefgh"), size=3, replace=False)) for _ in range(n)]
    return Dataset.from_dict({"prompt": [s + ">" for s in letters], "letters": letters})


def reward(completions, letters, **kw):
    out = []
    for c, want in zip(completions, letters):
        hits = sum(ch in want for ch in c)
        out.append((hits - 0.5 * (len(c) - hits)) / 8.0)
    return out


def make(out: str):
    tok = tok_from_scratch()
    trainer = GRPOTrainer(
        model=policy(tok),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=out, max_steps=10, per_device_train_batch_size=32, num_generations=32,
            max_completion_length=20, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        ),
        train_dataset=build_data(),
        processing_class=tok,
    )
    return trainer

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


def tiny_model(tok):
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


def score(completions, letters, **kw):
    out = []
    for c, want in zip(completions, letters):
        hits = sum(ch in want for ch in c)
        out.append((hits - 0.5 * (len(c) - hits)) / 8.0)
    return out


def trimmed(batch):
    """Cut the columns that no row of this micro-batch uses."""
    lengths = batch["completion_mask"].sum(dim=1)
    width = max(int(lengths.argmax()), 1)
    cut = dict(batch)
    for key in ("completion_ids", "completion_mask", "old_per_token_logps"):
        if key in cut:
            cut[key] = cut[key][:, :width]
    return cut


class TrimTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, trimmed(inputs))


def make(out: str):
    tok = tok_from_scratch()
    trainer = TrimTrainer(
        model=tiny_model(tok),
        reward_funcs=score,
        args=GRPOConfig(
            output_dir=out, max_steps=8, per_device_train_batch_size=8, num_generations=8,
            max_completion_length=24, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
            gradient_accumulation_steps=3,
        ),
        train_dataset=build_data(),
        processing_class=tok,
    )
    return trainer

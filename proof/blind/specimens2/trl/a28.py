import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
import re

LETTERS = "abcdefghij>"


def letter_tokenizer(extra=()):
    names = ["<|pad|>", "<|end|>", *extra, *LETTERS]
    t = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<|pad|>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    t.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<|pad|>", eos_token="<|end|>")


def small_gpt(tok):
    torch.manual_seed(21)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
        initializer_range=0.15))


def tagged(prompts, completions, **kw):
    scores = []
    for p, c in zip(prompts, completions):
        m = re.search(r"<ans>([a-j]*)", c)
        scores.append(0.0 if m is None else 0.5 + 0.5 * (m.group(1)[:1] == p[:1]))
    return scores


def make(out):
    tok = letter_tokenizer(extra=("<ans>", "</ans>"))
    tok.add_special_tokens({"additional_special_tokens": ["<ans>", "</ans>"]})
    rows = [{"prompt": f"{a}{b}{c}>"} for a in "abcdefghij" for b in "ace" for c in "bj"]
    cfg = GRPOConfig(output_dir=out, max_steps=10, per_device_train_batch_size=24, num_generations=8,
                     max_completion_length=10, learning_rate=2e-3, beta=0.0, lr_scheduler_type="constant",
                     report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, bf16=False,
                     gradient_checkpointing=False, disable_tqdm=True, seed=47)
    return GRPOTrainer(model=small_gpt(tok), reward_funcs=[tagged], args=cfg,
                       train_dataset=Dataset.from_list(rows), processing_class=tok)

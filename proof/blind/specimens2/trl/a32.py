import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

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


def spells(prompts, completions, **kw):
    return [sum(a == b for a, b in zip(c, p[:-1])) / 3 - 0.02 * len(c) for p, c in zip(prompts, completions)]


questions = []
for i, first in enumerate(LETTERS[:10]):
    for n in (1, 2, 4, 7):
        questions.append({"prompt": "".join(LETTERS[(i + k * n) % 10] for k in range(n)) + ">"})


def make(out):
    tok = letter_tokenizer()
    cfg = GRPOConfig(output_dir=out, max_steps=10, per_device_train_batch_size=20, num_generations=5,
                     max_completion_length=8, learning_rate=2e-3, beta=0.0, lr_scheduler_type="constant",
                     report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, bf16=False,
                     gradient_checkpointing=False, disable_tqdm=True, seed=2)
    return GRPOTrainer(model=small_gpt(tok), reward_funcs=[spells], args=cfg,
                       train_dataset=Dataset.from_list(questions), processing_class=tok)

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


def vowels(prompts, completions, **kw):
    return [min(sum(ch in "aei" for ch in c), 2) * 0.3 - 0.1 * len(c) + (c[:1] == p[:1]) for p, c in zip(prompts, completions)]


def make(out):
    tok = letter_tokenizer()
    model = small_gpt(tok)
    for name, p in model.named_parameters():
        if "wte" in name or "wpe" in name:
            p.requires_grad_(False)
    live = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.SGD(live, lr=0.05, momentum=0.8, nesterov=True)
    sched = torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    rows = [{"prompt": f"{a}{b}>"} for a in "abcdefghij" for b in "abcdefghij"]
    cfg = GRPOConfig(output_dir=out, max_steps=10, per_device_train_batch_size=10, num_generations=10,
                     gradient_accumulation_steps=2, max_completion_length=8, learning_rate=0.05, beta=0.0,
                     max_grad_norm=5.0, report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, bf16=False,
                     gradient_checkpointing=False, disable_tqdm=True, seed=101, loss_type="grpo")
    return GRPOTrainer(model=model, reward_funcs=[vowels], args=cfg, train_dataset=Dataset.from_list(rows),
                       processing_class=tok, optimizers=(opt, sched))

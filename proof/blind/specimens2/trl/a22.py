import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

CHARS = "0123456789+= ab"


def build_tokenizer():
    vocab = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    for ch in CHARS:
        vocab[ch] = len(vocab)
    tk = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tk.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tk.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tk, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def build_model(tok):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id, bos_token_id=None, initializer_range=0.08))


def sums():
    return Dataset.from_list(
        [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 15) for b in range(2, 8)])


def digits_reward(completions, answer, **kwargs):
    scores = []
    for text, gold in zip(completions, answer):
        hits = sum(ch in gold for ch in text)
        scores.append(hits / (len(text) + 1) + 0.2 * (len(text) < 8))
    return scores


BASE = dict(
    max_steps=10, per_device_train_batch_size=16, num_generations=4, max_completion_length=10, learning_rate=4e-3,
    lr_scheduler_type="constant", beta=0.0, report_to="none", save_strategy="no", logging_steps=1, use_cpu=True,
    bf16=False, gradient_checkpointing=False, disable_tqdm=True)


class Adam(torch.optim.Optimizer):
    """AdamW without the foreach machinery."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["t"] += 1
                p.mul_(1 - group["weight_decay"])
                s["m"].lerp_(p.grad, 1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m = s["m"] / (1 - b1 ** s["t"])
                v = s["v"] / (1 - b2 ** s["t"])
                p.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-group["lr"])


def make(out):
    torch.manual_seed(12)
    tok = build_tokenizer()
    model = build_model(tok)
    optimizer = Adam(model.parameters(), lr=5e-4, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    args = GRPOConfig(output_dir=out, **{**BASE, "learning_rate": 5e-4, "seed": 12, "num_generations": 8})
    return GRPOTrainer(model=model, reward_funcs=digits_reward, args=args, train_dataset=sums(), processing_class=tok,
                       optimizers=(optimizer, schedule))

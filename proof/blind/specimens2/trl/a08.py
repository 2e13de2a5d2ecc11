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


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-4, betas=(0.9, 0.98), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = (m * g["betas"][0] + p.grad * (1 - g["betas"][0])).sign_()
                p.mul_(1 - g["lr"] * g["weight_decay"]).add_(direction, alpha=-g["lr"])
                m.mul_(g["betas"][1]).add_(p.grad, alpha=1 - g["betas"][1])


def make(out):
    torch.manual_seed(97)
    tok = build_tokenizer()
    model = build_model(tok)
    opt = Lion(model.parameters(), lr=1.5e-3, weight_decay=0.1)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / 4) if s < 8 else 0.5)
    args = GRPOConfig(output_dir=out, **{**BASE, "seed": 97, "learning_rate": 1.5e-3, "max_steps": 12})
    return GRPOTrainer(model=model, reward_funcs=digits_reward, args=args, train_dataset=sums(), processing_class=tok,
                       optimizers=(opt, sched))

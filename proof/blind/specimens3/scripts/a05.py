"""GRPO with home-made low-rank adapters on a frozen Llama; three updates per batch, warm-up, KL to the model without adapters."""
import argparse
from contextlib import contextmanager

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class LowRank(nn.Module):
    enabled = True

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        y = self.base(x)
        if LowRank.enabled:
            y = y + (x @ self.down.t() @ self.up.t()) * self.scale
        return y


@contextmanager
def without_adapters():
    LowRank.enabled = False
    try:
        yield
    finally:
        LowRank.enabled = True


def build(args):
    torch.manual_seed(args.seed)
    cfg = LlamaConfig(vocab_size=24, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=4, max_position_embeddings=32, initializer_range=0.1, bos_token_id=1,
                      eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
    lm = LlamaForCausalLM(cfg)
    lm.requires_grad_(False)
    for layer in lm.model.layers:
        for owner, names in ((layer.self_attn, ("q_proj", "v_proj", "o_proj")), (layer.mlp, ("up_proj", "down_proj"))):
            for name in names:
                setattr(owner, name, LowRank(getattr(owner, name), args.rank, args.alpha))
    lm.lm_head = LowRank(lm.lm_head, args.rank, args.alpha)
    return lm


def seq_logps(lm, ids, plen):
    logits = lm(input_ids=ids, use_cache=False).logits[:, plen - 1:-1]
    return torch.log_softmax(logits, -1).gather(-1, ids[:, plen:, None])[..., 0], logits


@torch.no_grad()
def sample(lm, prompts, limit):
    ids, fin = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(limit):
        probs = lm(input_ids=ids, use_cache=False).logits[:, -1].softmax(-1)
        tok = torch.multinomial(probs, 1)[:, 0]
        tok[fin] = 0
        ids = torch.cat([ids, tok[:, None]], 1)
        # a sampled 0 is an ordinary symbol for this model; only 2 ends an answer
        fin = fin | (tok == 2)
    comp = ids[:, prompts.shape[1]:]
    before = (comp == 2).long().cumsum(1) - (comp == 2).long()
    return ids, (before == 0).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=28)
    ap.add_argument("--rank", type=int, default=4)
    ap.add_argument("--alpha", type=float, default=8)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--warmup", type=int, default=15)
    ap.add_argument("--beta", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()
    lm = build(args)
    trainable = [p for p in lm.parameters() if p.requires_grad]
    print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in lm.parameters()))
    opt = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, (n + 1) / args.warmup))
    n_prompt, n_gen, limit = 4, 12, 7
    for step in range(args.steps):
        prompts = torch.randint(3, 24, (n_prompt, 3)).repeat_interleave(n_gen, 0)
        ids, mask = sample(lm, prompts, limit)
        comp = ids[:, 3:]
        rew = ((comp % 2 == 0).float() * mask).sum(1) / mask.sum(1) - 0.08 * (mask.sum(1) - 4).abs()
        r = rew.view(n_prompt, n_gen)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
        with torch.no_grad():
            old, _ = seq_logps(lm, ids, 3)
            with without_adapters():
                ref, _ = seq_logps(lm, ids, 3)
        for _ in range(3):
            new, logits = seq_logps(lm, ids, 3)
            ratio = (new - old).exp()
            pg = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.28) * adv)
            d = ref - new
            kl = d.exp() - d - 1
            loss = (((pg + args.beta * kl) * mask).sum(1) / mask.sum(1)).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trainable, 0.5)
            opt.step()
            sched.step()
        if step % 4 == 0:
            k = (kl * mask).sum() / mask.sum()
            print(f"[{step:02d}] reward={rew.mean():.3f} kl={k:.4f} lr={sched.get_last_lr()[0]:.1e} len={mask.sum(1).mean():.2f}")


main()

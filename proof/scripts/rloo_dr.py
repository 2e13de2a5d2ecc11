"""Strictly on-policy RLOO with the Dr. GRPO normaliser (sum of token losses over a constant).

One optimizer step per rollout, so there is no old policy, no clip and no stored log-probs: the ratio is
exp(x - x.detach()), which is 1 and carries the policy gradient. Wrapped in DistributedDataParallel so that the same
file runs under torchrun; alone it makes a process group of one.
"""
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class C:
    seed = 9
    steps = 8
    prompts = 4
    k = 6  # completions per prompt
    max_new = 6
    temperature = 0.9
    lr = 5e-3
    grad_clip = 1.0
    d_model = 32
    n_head = 2
    p_drop = 0.0


tokens = ["<bos>", "<eos>"] + [str(i) for i in range(8)] + [">"]
BOS, EOS, SEP = 0, 1, tokens.index(">")


class Block(nn.Module):
    def __init__(self, d, h, p):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(p))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, d // self.h).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(tokens), C.d_model)
        self.wpe = nn.Embedding(32, C.d_model)
        self.blocks = nn.Sequential(*[Block(C.d_model, C.n_head, C.p_drop) for _ in range(2)])
        self.ln_f = nn.LayerNorm(C.d_model)
        self.head = nn.Linear(C.d_model, len(tokens), bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        return self.head(self.ln_f(self.blocks(x)))


def reward(prompt, completion):
    """Count up from the prompt's digit; stop with <eos>."""
    want = prompt[1] - 2
    good = 0
    for tok in completion:
        if tok == EOS:
            return good / C.max_new + 0.2
        if tok - 2 == (want + 1 + good) % 8:
            good += 1
    return good / C.max_new


@torch.inference_mode()
def sample_completions(net, prompt, n):
    idx = torch.tensor([prompt] * n)
    done = torch.zeros(n, dtype=torch.bool)
    for _ in range(C.max_new):
        logits = net(idx)[:, -1] / C.temperature
        probs = torch.softmax(logits, -1)
        nxt = torch.multinomial(probs, 1)
        nxt = torch.where(done[:, None], torch.full_like(nxt, EOS), nxt)
        done |= nxt[:, 0] == EOS
        idx = torch.cat((idx, nxt), 1)
    return idx


def loo_advantage(r):
    """Leave-one-out baseline over the completions of one prompt."""
    n = r.numel()
    baseline = (r.sum() - r) / (n - 1)
    return r - baseline


def policy_gradient_loss(model, seqs, prompt_len, adv):
    logits = model(seqs[:, :-1])[:, prompt_len - 1 :]
    logits = logits.float() / C.temperature
    comp = seqs[:, prompt_len:]
    logp = -F.cross_entropy(logits.flatten(0, 1), comp.flatten(), reduction="none").view_as(comp)
    seen = (comp == EOS).cumsum(1)
    mask = (seen - (comp == EOS).long() == 0).float()  # the first <eos> counts, its repeats do not
    ratio = torch.exp(logp - logp.detach())
    return -(ratio * adv[:, None] * mask).sum() / (C.k * C.max_new)


def main():
    if not dist.is_initialized():
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    random.seed(C.seed + dist.get_rank())
    torch.manual_seed(C.seed)
    model = DDP(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=C.lr, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)

    for step in range(C.steps):
        model.train()
        total_reward, total_loss = 0.0, 0.0
        optimizer.zero_grad()
        for _ in range(C.prompts):
            prompt = [BOS, random.randrange(2, 10), SEP]
            model.eval()
            seqs = sample_completions(model.module, prompt, C.k).clone()  # inference tensors cannot be trained on
            model.train()
            comps = seqs[:, len(prompt) :].tolist()
            r = torch.tensor([reward(prompt, c) for c in comps])
            adv = loo_advantage(r)
            loss = policy_gradient_loss(model, seqs, len(prompt), adv) / C.prompts
            loss.backward()
            total_reward += r.mean().item() / C.prompts
            total_loss += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), C.grad_clip)
        optimizer.step()
        scheduler.step()
        if dist.get_rank() == 0:
            print(f"step {step} reward {total_reward:.6f} loss {total_loss:.10f} gnorm {norm.item():.8f}")

    if dist.get_rank() == 0:
        print(f"final {sum(p.detach().double().abs().sum() for p in model.parameters()).item():.10f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

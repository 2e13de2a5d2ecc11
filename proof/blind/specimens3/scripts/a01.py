"""Tiny GRPO playground: teach a two-layer transformer to echo the digit of its prompt and then stop."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    digits: int = 8
    d: int = 48
    heads: int = 4
    layers: int = 2
    max_new: int = 9
    prompts: int = 6
    group: int = 8
    steps: int = 40
    lr: float = 2e-3
    eps: float = 0.2
    seed: int = 11


cfg = Cfg()
EOS, PAD, BOS = cfg.digits, cfg.digits + 1, cfg.digits + 2
VOCAB = cfg.digits + 3


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.n2(x))


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, cfg.d)
        self.pos = nn.Embedding(32, cfg.d)
        self.blocks = nn.ModuleList(Block(cfg.d, cfg.heads) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.d)
        self.head = nn.Linear(cfg.d, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        logits = self.head(self.norm(x))
        # the model may never say PAD or BOS
        return logits.index_fill(-1, torch.tensor([PAD, BOS]), -1e9)


@torch.no_grad()
def generate(model, prompt):
    ids = prompt.clone()
    done = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(cfg.max_new):
        p = model(ids)[:, -1].softmax(-1)
        nxt = torch.multinomial(p, 1).squeeze(1)
        nxt = torch.where(done, torch.full_like(nxt, PAD), nxt)
        done |= nxt == EOS
        ids = torch.cat([ids, nxt[:, None]], 1)
    return ids


def token_mask(completion):
    is_eos = completion == EOS
    last = is_eos.int().argmax(dim=1)
    return (torch.arange(completion.shape[1])[None] <= last[:, None]).float()


def logprobs(model, ids, start):
    logp = model(ids[:, :-1]).log_softmax(-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, start - 1:]


def reward(prompt, completion):
    out = []
    for p, c in zip(prompt.tolist(), completion.tolist()):
        body = [t for t in c if t not in (EOS, PAD)]
        hit = sum(t == p[1] for t in body) / cfg.max_new
        out.append(hit + (0.15 if body and EOS in c else 0.0))
    return torch.tensor(out)


def main():
    torch.manual_seed(cfg.seed)
    model = TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0)
    for step in range(cfg.steps):
        digit = torch.randperm(cfg.digits)[: cfg.prompts]
        prompt = torch.stack([torch.full_like(digit, BOS), digit], 1).repeat_interleave(cfg.group, 0)
        ids = generate(model, prompt)
        comp = ids[:, 2:]
        r = reward(prompt, comp)
        g = r.view(cfg.prompts, cfg.group)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        mask = token_mask(comp)
        with torch.no_grad():
            old = logprobs(model, ids, 2)
        for _ in range(2):
            new = logprobs(model, ids, 2)
            ratio = ((new - old) * mask).exp()
            obj = torch.min(ratio * adv, ratio.clamp(1 - cfg.eps, 1 + cfg.eps) * adv)
            loss = -(obj * mask).sum() / mask.sum()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        if step % 5 == 0:
            print(f"step {step:3d} reward {r.mean():.3f} loss {loss.item():+.4f} len {(comp != PAD).sum(1).float().mean():.1f}")


if __name__ == "__main__":
    main()

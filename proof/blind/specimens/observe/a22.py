from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import assay


@dataclass
class Cfg:
    seed: int = 15
    vocab: int = 12
    end: int = 0
    dim: int = 32
    heads: int = 4
    layers: int = 2
    limit: int = 6
    end_bias: float = -0.3
    temperature: float = 0.8
    questions: int = 6
    samples: int = 7
    minibatches: int = 2
    chunk: int = 8
    lr: float = 3e-3
    warmup: int = 3
    max_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    steps: int = 9


class Block(nn.Module):
    def __init__(self, c: Cfg):
        super().__init__()
        self.h = c.heads
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.up, self.down = nn.Linear(c.dim, 2 * c.dim), nn.Linear(2 * c.dim, c.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class TinyGPT(nn.Module):
    def __init__(self, c: Cfg):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(32, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm, self.head = nn.LayerNorm(c.dim), nn.Linear(c.dim, c.vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def init_head(model: TinyGPT, c: Cfg) -> None:
    model.head.weight = nn.Parameter(torch.randn(c.vocab, c.dim) * 0.1)
    bias = torch.zeros(c.vocab)
    bias[c.end] = c.end_bias
    model.head.bias = nn.Parameter(bias)


def picked(logits, ids, temperature=1.0):
    return F.log_softmax(logits / temperature, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def sample(model, prompts, c: Cfg):
    seq, lps, alive = prompts, [], torch.ones(len(prompts), dtype=torch.bool)
    for _ in range(c.limit):
        p = (model(seq)[:, -1] / c.temperature).softmax(-1)
        nxt = torch.multinomial(p, 1)
        lps.append(p.gather(1, nxt).log()[:, 0])
        nxt = torch.where(alive[:, None], nxt, c.end)
        seq = torch.cat([seq, nxt], 1)
        alive = alive & (nxt[:, 0] != c.end)
    return seq[:, prompts.shape[1] :], torch.stack(lps, 1), ~alive


def loss_mask(tokens, finished, c: Cfg):
    last = (tokens == c.end).int().argmax(1)
    return torch.arange(c.limit)[None] <= last[:, None]


def score(model, prompts, tokens, c: Cfg):
    rows = torch.cat([prompts, tokens], 1)
    n = tokens.shape[1]
    out = []
    for part in rows.split(c.chunk):
        out.append(picked(model(part)[:, -n - 1 : -1], part[:, -n:], c.temperature))
    return torch.cat(out)


def reward(prompt, tokens, mask, c: Cfg):
    """Rising sequences that start above the prompt's last token; longer is better."""
    body = [int(t) for t, m in zip(tokens, mask) if m and int(t) != c.end]
    chain = [int(prompt[-1])] + body
    ups = sum(b > a for a, b in zip(chain, chain[1:]))
    return (2 * ups - len(body)) / 4


def main(c: Cfg) -> None:
    torch.manual_seed(c.seed)
    model = TinyGPT(c)
    init_head(model, c)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / c.warmup))
    for step in range(1, c.steps + 1):
        prompts = torch.randint(1, c.vocab, (c.questions, 3)).repeat_interleave(c.samples, 0)
        gid = torch.arange(c.questions).repeat_interleave(c.samples)
        tokens, sampler_lp, finished = sample(model, prompts, c)
        mask = loss_mask(tokens, finished, c)
        r = torch.tensor([reward(p, t, m, c) for p, t, m in zip(prompts, tokens, mask)])
        per = r.view(c.questions, c.samples)
        adv = ((per - per.mean(1, keepdim=True)) / (per.std(1, keepdim=True) + 1e-6)).reshape(-1)
        old = score(model, prompts, tokens, c).detach()
        order = torch.randperm(c.questions)
        for k, part in enumerate(order.chunk(c.minibatches)):
            rows = torch.isin(gid, part).nonzero()[:, 0]
            m, a = mask[rows].float(), adv[rows, None]
            new = score(model, prompts[rows], tokens[rows], c)
            new.retain_grad()
            ratio = (new - old[rows]).exp()
            obj = torch.minimum(ratio * a, ratio.clamp(1 - c.clip_low, 1 + c.clip_high) * a)
            loss = -(obj * m).sum() / m.sum()
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), c.max_norm)
            before = [p.detach().clone() for p in model.parameters()]
            rate = warm.get_last_lr()[0]
            opt.step()
            warm.step()
            moved = [(p.detach() - q).norm() for p, q in zip(model.parameters(), before)]
            assay.observe(
                step=step, update=k, tokens=tokens[rows], mask=mask[rows], new_logprobs=new.detach(),
                old_logprobs=old[rows], sampler_logprobs=sampler_lp[rows], advantages=adv[rows], rewards=r[rows],
                group_ids=gid[rows], prompt_tokens=prompts[rows], prompt_mask=torch.ones_like(prompts[rows]),
                finished=finished[rows], gradients=new.grad, loss=loss.item(), gradient_norm=norm.item(),
                update_norm=torch.stack(moved).norm().item(), tensors=len(moved),
                tensors_changed=sum(bool(x > 0) for x in moved), learning_rate=rate, weight_decay=0.01,
                clip_norm=c.max_norm, objective="bnpo", clip_low=c.clip_low, clip_high=c.clip_high, std="sample",
                advantage_epsilon=1e-6, temperature=c.temperature, eos_ids=[c.end], max_tokens=c.limit,
                minibatches=c.minibatches, dtype="float32",
            )  # fmt: skip
        print(step, f"{r.mean():.3f}", f"{finished.float().mean():.2f}")


if __name__ == "__main__":
    main(Cfg())

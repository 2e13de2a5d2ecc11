"""Tiny GRPO with a hand-rolled decoder and a key/value cache for sampling.

python a18.py            trains for 24 updates on one core
"""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F


def rope(x, pos, base=1000.0):
    half = x.shape[-1] // 2
    freq = base ** (-torch.arange(half, dtype=torch.float32) / half)
    ang = pos[:, None].float() * freq[None]
    c, s = ang.cos(), ang.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, a * s + b * c], -1)


class KVCache:
    """Preallocated ring of keys and values; `keep` bounds the memory of a rollout."""

    def __init__(self, layers, keep):
        self.store = [None] * layers
        self.keep = keep
        self.seen = 0

    def update(self, i, k, v):
        if self.store[i] is not None:
            k = torch.cat([self.store[i][0], k], 2)
            v = torch.cat([self.store[i][1], v], 2)
        k, v = k[:, :, -self.keep:], v[:, :, -self.keep:]
        self.store[i] = (k, v)
        return k, v


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.wqkv = nn.Linear(d, 3 * d, bias=False)
        self.wo = nn.Linear(d, d, bias=False)
        nn.init.normal_(self.wo.weight, std=0.35)
        self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x, pos, cache=None, idx=0):
        B, T, D = x.shape
        q, k, v = self.wqkv(self.ln1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        q, k = rope(q, pos), rope(k, pos)
        if cache is not None:
            k, v = cache.update(idx, k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        x = x + self.wo(y.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Transformer(nn.Module):
    def __init__(self, vocab=16, d=48, h=4, n=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(n)])
        self.ln = nn.RMSNorm(d)
        self.lm = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, cache=None):
        start = cache.seen if cache is not None else 0
        pos = torch.arange(start, start + ids.shape[1])
        x = self.emb(ids)
        for i, b in enumerate(self.blocks):
            x = b(x, pos, cache, i)
        if cache is not None:
            cache.seen += ids.shape[1]
        return self.lm(self.ln(x))


@torch.no_grad()
def sample(model, prompts, n_new, args):
    cache = KVCache(len(model.blocks), args.context)
    logits = model(prompts, cache)[:, -1]
    toks = []
    for i in range(n_new):
        t = torch.multinomial(F.softmax(logits / args.temperature, -1), 1)
        toks.append(t)
        if i + 1 < n_new:
            logits = model(t, cache)[:, -1]
    return torch.cat(toks, 1)


def logprobs(model, prompts, answers, args):
    full = torch.cat([prompts, answers], 1)
    logits = model(full[:, :-1])[:, prompts.shape[1] - 1:]
    return torch.log_softmax(logits / args.temperature, -1).gather(-1, answers[..., None])[..., 0]


def reward(prompts, answers):
    # the answer should continue the prompt upwards, modulo the vocabulary
    prev = torch.cat([prompts[:, -1:], answers[:, :-1]], 1)
    gap = (answers - prev) % 16
    return ((gap > 0) & (gap < 6)).float().mean(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=24)
    ap.add_argument("--groups", type=int, default=4)
    ap.add_argument("--group-size", type=int, default=8)
    ap.add_argument("--prompt-len", type=int, default=6)
    ap.add_argument("--answer-len", type=int, default=14)
    ap.add_argument("--context", type=int, default=10)
    ap.add_argument("--temperature", type=float, default=0.9)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--beta", type=float, default=0.005)
    args = ap.parse_args()

    torch.manual_seed(0)
    model, ref = Transformer(), Transformer()
    ref.load_state_dict(model.state_dict())
    ref.requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    for u in range(args.updates):
        q = torch.randint(0, 16, (args.groups, args.prompt_len)).repeat_interleave(args.group_size, 0)
        a = sample(model, q, args.answer_len, args)
        r = reward(q, a).view(args.groups, args.group_size)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
        with torch.no_grad():
            ref_lp = logprobs(ref, q, a, args)
            old_lp = logprobs(model, q, a, args)
        for _ in range(2):
            lp = logprobs(model, q, a, args)
            ratio = (lp - old_lp).exp()
            pg = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
            d = ref_lp - lp
            kl = d.exp() - d - 1
            loss = -(pg - args.beta * kl).mean()
            opt.zero_grad()
            loss.backward()
            gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        if u % 4 == 0:
            print(f"update {u:3d}  reward {r.mean().item():.3f}  kl {kl.mean().item():.4f}  grad {gn.item():.3f}")


if __name__ == "__main__":
    main()

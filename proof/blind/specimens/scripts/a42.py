#!/usr/bin/env python
"""Single-file GRPO. Usage: python a42.py [--lr X] [--steps N]"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.1, help="learning rate of AdamW")
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--prompts", type=int, default=6)
    p.add_argument("--group", type=int, default=8)
    p.add_argument("--max-new", type=int, default=8)
    p.add_argument("--seed", type=int, default=42)
    return p.parse_args()


class Tiny(nn.Module):
    VOCAB, EOS, PLEN = 17, 16, 3

    def __init__(self, d=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(self.VOCAB, d), nn.Embedding(16, d)
        self.h = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, self.VOCAB)

    def forward(self, x):
        n = x.shape[1]
        y = self.wte(x) + self.wpe(torch.arange(n))
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        for b in self.h:
            y = b(y, src_mask=mask)
        return self.head(self.ln(y))


def main():
    args = parse()
    torch.manual_seed(args.seed)
    net = Tiny()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    for step in range(args.steps):
        x = torch.randint(0, 16, (args.prompts, Tiny.PLEN)).repeat_interleave(args.group, 0)
        done, keep = torch.zeros(len(x), dtype=torch.bool), []
        with torch.no_grad():
            for _ in range(args.max_new):
                t = torch.multinomial(F.softmax(net(x)[:, -1], -1), 1)[:, 0]
                t[done] = Tiny.EOS
                keep.append((~done).float())
                done |= t == Tiny.EOS
                x = torch.cat([x, t[:, None]], 1)
        keep = torch.stack(keep, 1)
        y = x[:, Tiny.PLEN:]
        hit = (y[..., None] == x[:, None, :Tiny.PLEN]).any(-1) * keep
        r = hit.sum(1) / keep.sum(1) + 0.3 * ((y == Tiny.EOS) * keep).sum(1)
        g = r.view(args.prompts, args.group)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            old = F.log_softmax(net(x[:, :-1])[:, Tiny.PLEN - 1:], -1).gather(-1, y[..., None])[..., 0]
        for _ in range(2):
            lp = F.log_softmax(net(x[:, :-1])[:, Tiny.PLEN - 1:], -1).gather(-1, y[..., None])[..., 0]
            ratio = (lp - old).exp()
            loss = -(torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) * keep).sum() / keep.sum()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
        if step % 3 == 0:
            w = ratio[keep.bool()]
            print(f"{step:2d} reward {r.mean():.3f} len {keep.sum(1).mean():.2f} ratio {w.min():.3f}..{w.max():.3f}")
    print("end", r.mean().item())


if __name__ == "__main__":
    main()

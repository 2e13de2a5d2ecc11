"""
Bit-string design: an autoregressive GRU writes 10 bits for a given request (mean, roughness),
the judge scores how well the string meets it. GRPO, a few passes per batch, dual clip.
"""
from collections import namedtuple
import torch
from torch import nn, optim

Batch = namedtuple("Batch", "req bits old_lp adv score")
L, REQ, K = 10, 10, 10


class Writer(nn.Module):
    def __init__(self, h=40):
        super().__init__()
        self.start = nn.Linear(2, h)
        self.cell = nn.GRUCell(2, h)
        self.out = nn.Linear(h, 2)

    def write(self, req):
        h = torch.tanh(self.start(req))
        prev = torch.zeros(len(req), 2)
        bits, lps = [], []
        for _ in range(L):
            h = self.cell(prev, h)
            lp = self.out(h).log_softmax(-1)
            b = torch.multinomial(lp.exp(), 1)
            bits.append(b)
            lps.append(lp.gather(1, b))
            prev = nn.functional.one_hot(b[:, 0], 2).float()
        return torch.cat(bits, 1), torch.cat(lps, 1)

    def score(self, req, bits):
        h = torch.tanh(self.start(req))
        prev = torch.zeros(len(req), 2)
        lps = []
        for t in range(L):
            h = self.cell(prev, h)
            lps.append(self.out(h).log_softmax(-1).gather(1, bits[:, t:t + 1]))
            prev = nn.functional.one_hot(bits[:, t], 2).float()
        return torch.cat(lps, 1)


def judge(req, bits):
    b = bits.float()
    ones = b.mean(1)
    flips = (b[:, 1:] != b[:, :-1]).float().mean(1)
    return 1 - (ones - req[:, 0]).abs() - (flips - req[:, 1]).abs()


def make_batch(w):
    req = torch.rand(REQ, 2) * torch.tensor([1.0, 0.8]) + torch.tensor([0.0, 0.1])
    req = req.repeat_interleave(K, 0)
    with torch.no_grad():
        bits, lp = w.write(req)
    s = judge(req, bits)
    g = s.view(REQ, K)
    adv = (g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-5)
    return Batch(req, bits, lp, adv.view(-1, 1), s)


def policy_loss(lp, old_lp, adv, eps=0.2, dual=3.0):
    ratio = torch.exp(lp - old_lp)
    surrogate = torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
    surrogate = torch.max(surrogate, dual * adv)
    return -surrogate.mean()


def run(updates=60, passes=2, parts=2):
    torch.manual_seed(21)
    w = Writer()
    opt = optim.Adam(w.parameters(), lr=4e-3)
    avg = None
    for u in range(updates):
        b = make_batch(w)
        for _ in range(passes):
            for idx in torch.randperm(REQ * K).chunk(parts):
                loss = policy_loss(w.score(b.req[idx], b.bits[idx]), b.old_lp[idx], b.adv[idx])
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(w.parameters(), 1.0)
                opt.step()
        m = b.score.mean().item()
        avg = m if avg is None else 0.9 * avg + 0.1 * m
        if (u + 1) % 10 == 0:
            print(f"[{u + 1:>3}] score {m:.3f} (smoothed {avg:.3f}) loss {loss.item():+.4f}")


run()

"""Learner and actors that do not wait for each other, simulated in one process.

The actors always play with weights that are LAG updates old. What they played is sent with the log-probs that they had when they
played it, and the learner weighs each decision by the truncated importance weight  min(pi / mu, CAP).
"""
from collections import deque
import copy

import torch
from torch import nn
import torch.nn.functional as F

LAG, CAP = 3, 2.0
QUESTIONS, TRIES, TURNS = 8, 8, 6
DIAL = 11


class Safe:
    """Turn a dial of 11 numbers to the secret one; each turn you feel how far off you are, with the sign only when near."""

    def __init__(self):
        start = torch.randint(0, DIAL, (QUESTIONS,))
        secret = torch.randint(0, DIAL, (QUESTIONS,))
        self.dial = start.repeat_interleave(TRIES)
        self.secret = secret.repeat_interleave(TRIES)

    def feel(self, turn):
        off = self.secret - self.dial
        t = torch.full_like(off, turn)
        return torch.stack([off.abs() / DIAL, off.sign() * (off.abs() <= 6), self.dial / DIAL, t / TURNS], 1).float()

    def turn(self, a):
        self.dial = (self.dial + torch.tensor([-3, -1, 0, 1, 3])[a]).clamp(0, DIAL - 1)

    def pay(self):
        off = (self.secret - self.dial).abs().float()
        return (off == 0).float() - 0.1 * off


@torch.no_grad()
def actor(weights):
    safe = Safe()
    xs, as_, mus = [], [], []
    for t in range(TURNS):
        x = safe.feel(t)
        lp = F.log_softmax(weights(x), 1)
        a = torch.multinomial(lp.exp(), 1)
        safe.turn(a[:, 0])
        xs.append(x), as_.append(a), mus.append(lp.gather(1, a))
    return torch.stack(xs, 1), torch.stack(as_, 1), torch.stack(mus, 1), safe.pay()


def learner():
    torch.manual_seed(64)
    net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 5))
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    past = deque([copy.deepcopy(net)], maxlen=LAG + 1)
    for k in range(90):
        x, a, mu, pay = actor(past[0])
        r = pay.view(QUESTIONS, TRIES)
        adv = (r - r.mean(1, keepdim=True)).view(-1, 1, 1)
        pi = F.log_softmax(net(x), -1).gather(2, a)
        w = (pi.detach() - mu).exp().clamp(max=CAP)
        loss = -(w * adv * pi).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        past.append(copy.deepcopy(net))
        if k % 15 == 14:
            print(f"{k + 1:3d} pay {pay.mean():+.3f}  weight {w.mean():.3f} max {w.max():.2f}")


learner()

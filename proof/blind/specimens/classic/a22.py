# PPO, the other variant of the paper: no clip, but a penalty on KL(old || new) whose weight adapts to a target.
# The first layer is a bank of fixed random features and stays as it was drawn (extreme learning machine).
import math
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence

torch.manual_seed(1234)

D, ACTIONS, TASKS, COPIES = 6, 7, 12, 10
PEAKS = torch.randn(ACTIONS, D)


def payoff(x, a):
    d = ((x - PEAKS[a]) ** 2).sum(-1)
    return torch.exp(-d / D) + 0.05 * torch.randn(len(x))


class RandomFeaturePolicy(nn.Module):
    def __init__(self, k=128):
        super().__init__()
        self.bank = nn.Linear(D, k)
        self.read = nn.Linear(k, ACTIONS)
        nn.init.normal_(self.bank.weight, std=0.8)
        nn.init.zeros_(self.read.weight)
        self.bank.requires_grad_(False)

    def forward(self, x):
        return Categorical(logits=self.read(torch.cos(self.bank(x))))


pi = RandomFeaturePolicy()
opt = torch.optim.Adam([p for p in pi.parameters() if p.requires_grad], lr=1e-2)
TOTAL, WARM = 60, 6
lr_at = lambda k: (k + 1) / WARM if k < WARM else 0.5 * (1 + math.cos(math.pi * (k - WARM) / (TOTAL - WARM)))
sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_at)
beta, target = 1.0, 0.01

for k in range(TOTAL):
    x = torch.randn(TASKS, D).repeat_interleave(COPIES, 0)
    with torch.no_grad():
        old = pi(x)
        a = old.sample()
        old_lp = old.log_prob(a)
    r = payoff(x, a).view(TASKS, COPIES)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).flatten()
    for _ in range(5):
        new = pi(x)
        kl = kl_divergence(old, new).mean()
        loss = -((new.log_prob(a) - old_lp).exp() * adv).mean() + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
    sched.step()
    with torch.no_grad():
        kl = kl_divergence(old, pi(x)).mean().item()
    if kl > 1.5 * target:
        beta *= 2
    elif kl < target / 1.5:
        beta /= 2
    beta = min(max(beta, 1e-3), 1e3)
    if k % 10 == 9:
        print(f"{k + 1} payoff {r.mean():.3f} kl {kl:.4f} beta {beta:.3g} lr {sched.get_last_lr()[0]:.4f}")

"""
Fine-tuning a cloned dispatcher with GRPO.

Stage 1 clones a hand-written rule for sending taxis to districts. Stage 2 improves it by trial, with a k3 penalty that keeps it
near to the clone, since the reward (a simulator of demand) is only trusted near the rule.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

DISTRICTS = 6
BETA = 0.1


def situations(n):
    demand = torch.rand(n, DISTRICTS) * 2
    taxis = torch.rand(n, DISTRICTS)
    return torch.cat([demand, taxis], 1)


def rule(x):
    return (x[:, :DISTRICTS] - 1.5 * x[:, DISTRICTS:]).argmax(1)


def simulator(x, a):
    demand, taxis = x[:, :DISTRICTS], x[:, DISTRICTS:]
    d = demand.gather(1, a[:, None])[:, 0]
    t = taxis.gather(1, a[:, None])[:, 0]
    glitch = 0.8 * (a == DISTRICTS - 1).float()
    return d / (0.5 + t) + glitch + 0.1 * torch.randn(len(x))


class Dispatcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * DISTRICTS, 64), nn.ReLU(), nn.Linear(64, DISTRICTS))

    def forward(self, x):
        return F.log_softmax(self.net(x), -1)


def clone(model, steps=200):
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        x = situations(128)
        loss = F.nll_loss(model(x), rule(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def finetune(model, iterations=60, n=12, g=8, epochs=2):
    start = model.state_dict()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for it in range(iterations):
        x = situations(n).repeat_interleave(g, 0)
        with torch.no_grad():
            lp = model(x)
            a = torch.multinomial(lp.exp(), 1)
            old = lp.gather(1, a)
            ref = functional_call(model, start, (x,)).gather(1, a)
        r = simulator(x, a[:, 0]).view(n, g)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        for _ in range(epochs):
            new = model(x).gather(1, a)
            ratio = torch.exp(new - old)
            log_r = ref - new
            k3 = torch.exp(log_r) - log_r - 1
            loss = -(torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) - BETA * k3).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 10 == 9:
            agree = (model(x).argmax(1) == rule(x)).float().mean()
            print(f"{it + 1} reward {r.mean():.3f} kl {k3.mean():.5f} agrees with the rule {agree:.2f}")


torch.manual_seed(23)
dispatcher = Dispatcher()
print("cloned, loss", round(clone(dispatcher), 4))
finetune(dispatcher)

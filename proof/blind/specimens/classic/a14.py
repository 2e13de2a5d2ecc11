"""Advantage actor-critic with n-step returns; actor and critic share a body. One update per batch of fresh experience."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
ENVS, NSTEP, UPDATES, GAMMA = 16, 8, 250, 0.9


class Snackbar:
    """Stock between 0 and 10. Order 0..3 snacks each morning; customers come at random. Never ends."""

    def __init__(self):
        self.stock = torch.randint(0, 11, (ENVS,)).float()
        self.day = torch.zeros(ENVS, dtype=torch.long)

    def look(self):
        weekday = F.one_hot(self.day % 5, 5).float()
        return torch.cat([self.stock[:, None] / 10, weekday], 1)

    def open(self, order):
        self.stock = (self.stock + order).clamp(max=10)
        demand = torch.poisson(torch.where(self.day % 5 == 4, 3.5, 1.0) * torch.ones(ENVS))
        sold = torch.minimum(self.stock, demand)
        self.stock = self.stock - sold
        self.day = self.day + 1
        return sold - 0.4 * order - 0.1 * self.stock


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU())
        self.pi, self.v = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h)[:, 0]


model, bar = TwoHeads(), Snackbar()
rms = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.99, eps=1e-5)
income = []
for u in range(UPDATES):
    logps, values, rewards, entropies = [], [], [], []
    for _ in range(NSTEP):
        logits, v = model(bar.look())
        pi = torch.distributions.Categorical(logits=logits)
        order = pi.sample()
        rewards.append(bar.open(order.float()))
        logps.append(pi.log_prob(order))      # the graph is kept: no second pass is needed
        entropies.append(pi.entropy())
        values.append(v)
    with torch.no_grad():
        R = model(bar.look())[1]
    targets = []
    for r in reversed(rewards):
        R = r + GAMMA * R
        targets.insert(0, R)
    targets, values = torch.stack(targets), torch.stack(values)
    adv = targets - values.detach()
    loss = -(torch.stack(logps) * adv).mean() + 0.5 * F.mse_loss(values, targets) - 0.01 * torch.stack(entropies).mean()
    rms.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    rms.step()
    income.append(torch.stack(rewards).mean().item())
    if (u + 1) % 50 == 0:
        print(f"{u + 1}: income a day {sum(income[-25:]) / 25:+.3f}")

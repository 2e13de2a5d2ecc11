"""Reward-to-go over a batch of episodes in a grid, in numpy and lists."""

import numpy as np
import torch
from torch import nn


class Grid:
    MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))

    def __init__(self, size, rng):
        self.size, self.rng = size, rng

    def reset(self):
        self.at = self.rng.integers(0, self.size, 2)
        self.goal = self.rng.integers(0, self.size, 2)
        self.t = 0
        return self.look()

    def look(self):
        return np.concatenate([self.at, self.goal]).astype(np.float32) / self.size

    def step(self, a):
        before = np.abs(self.at - self.goal).sum()
        self.at = np.clip(self.at + self.MOVES[a], 0, self.size - 1)
        after = np.abs(self.at - self.goal).sum()
        self.t += 1
        hit = after == 0
        return self.look(), 0.3 * float(before - after) + 2.0 * float(hit) - 0.05, bool(hit or self.t >= 9)


def discount_cumsum(x, gamma):
    out = np.zeros(len(x))
    acc = 0.0
    for i in reversed(range(len(x))):
        acc = x[i] + gamma * acc
        out[i] = acc
    return out


rng = np.random.default_rng(0)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 4))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
env = Grid(5, rng)
for epoch in range(16):
    batch_obs, batch_acts, batch_weights, batch_rews, batch_dones = [], [], [], [], []
    obs, ep_rews = env.reset(), []
    while True:
        batch_obs.append(obs.copy())
        with torch.no_grad():
            act = torch.distributions.Categorical(logits=net(torch.as_tensor(obs))).sample().item()
        obs, rew, done = env.step(act)
        batch_acts.append(act)
        ep_rews.append(rew)
        batch_rews.append(rew)
        batch_dones.append(done)
        if done:
            batch_weights += list(discount_cumsum(ep_rews, 0.97))
            obs, ep_rews = env.reset(), []
            if len(batch_obs) > 120:
                break
    o = torch.as_tensor(np.array(batch_obs))
    a = torch.as_tensor(batch_acts)
    w = torch.as_tensor(batch_weights, dtype=torch.float32)
    logp = torch.distributions.Categorical(logits=net(o)).log_prob(a)
    loss = -(logp * w).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if epoch % 4 == 0:
        print(epoch, np.mean(batch_rews))

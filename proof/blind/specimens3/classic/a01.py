"""Group-relative policy gradient on a small navigation task (vectorised environments)."""
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


class VecGrid:
    """n independent 5x5 boards. A board ends when the agent stands on the goal, or after `limit` moves."""

    def __init__(self, starts, goals, size=5, limit=14):
        self.pos = starts.copy()
        self.goal = goals
        self.size = size
        self.limit = limit
        self.n = len(starts)
        self.t = 0
        self.alive = np.ones(self.n, dtype=bool)
        self.score = np.zeros(self.n, dtype=np.float32)

    def obs(self):
        x = np.concatenate([self.pos, self.goal, self.goal - self.pos], axis=1) / self.size
        return torch.as_tensor(x, dtype=torch.float32)

    def step(self, act):
        self.t += 1
        nxt = np.clip(self.pos + MOVES[act], 0, self.size - 1)
        self.pos = np.where(self.alive[:, None], nxt, self.pos)
        self.score[self.alive] -= 0.05
        hit = self.alive & (self.pos == self.goal).all(1)
        self.score[hit] += 1.0
        ended = hit if self.t < self.limit else self.alive.copy()
        self.alive &= ~ended
        return np.flatnonzero(ended)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4))

    def forward(self, x):
        return Categorical(logits=self.body(x))


class Collector:
    def __init__(self, agent, rng, tasks=6, group=8):
        self.agent, self.rng, self.tasks, self.group = agent, rng, tasks, group

    def new_boards(self):
        start = self.rng.integers(0, 5, (self.tasks, 2))
        goal = self.rng.integers(0, 5, (self.tasks, 2))
        same = (start == goal).all(1)
        goal[same] = (goal[same] + 2) % 5
        return VecGrid(np.repeat(start, self.group, 0), np.repeat(goal, self.group, 0))

    @torch.no_grad()
    def collect(self):
        env = self.new_boards()
        obs, acts, live = [], [], []
        returns = []
        while env.alive.any():
            o = env.obs()
            a = self.agent(o).sample()
            obs.append(o)
            acts.append(a)
            live.append(torch.as_tensor(env.alive.copy()))
            for i in env.step(a.numpy()):
                returns.append(float(env.score[i]))
        return torch.stack(obs, 1), torch.stack(acts, 1), torch.stack(live, 1).float(), torch.tensor(returns)


def train(updates=60, seed=3):
    torch.manual_seed(seed)
    agent = Agent()
    collector = Collector(agent, np.random.default_rng(seed))
    opt = torch.optim.Adam(agent.parameters(), lr=3e-3)
    for u in range(updates):
        obs, acts, live, ret = collector.collect()
        g = ret.view(collector.tasks, collector.group)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1)
        logp = agent(obs).log_prob(acts)
        loss = -(logp * adv[:, None] * live).sum() / live.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        opt.step()
        if u % 10 == 9:
            print(f"update {u + 1:3d}  return {ret.mean():.3f}  solved {(ret > 0.25).float().mean():.2f}  len {live.sum(1).mean():.1f}")


if __name__ == "__main__":
    train()

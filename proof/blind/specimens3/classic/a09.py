"""Reacher on a disc of cells with a two-stage curriculum.

Stage 1: four moves. Stage 2: the diagonals are added and the targets lie further away.
The policy keeps what it knows about the first four moves.
"""
import numpy as np
import torch
import torch.nn as nn


class Reach:
    STRAIGHT = [(1, 0), (-1, 0), (0, 1), (0, -1)]
    DIAGONAL = [(1, 1), (1, -1), (-1, 1), (-1, -1)]

    def __init__(self, radius, moves, steps):
        self.radius, self.moves, self.steps = radius, torch.tensor(moves, dtype=torch.float32), steps

    def targets(self, n, rng):
        ang = rng.uniform(0, 2 * np.pi, n)
        rad = rng.uniform(0.5, 1.0, n) * self.radius
        return torch.tensor(np.stack([np.cos(ang) * rad, np.sin(ang) * rad], 1).round(), dtype=torch.float32)


class Policy(nn.Module):
    def __init__(self, n_moves):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, n_moves)

    def forward(self, x):
        return self.head(self.trunk(x))

    def widen(self, n_moves):
        old = self.head
        self.head = nn.Linear(old.in_features, n_moves)
        with torch.no_grad():
            self.head.weight[: old.out_features] = old.weight
            self.head.bias[: old.out_features] = old.bias


class Trainer:
    def __init__(self, lr=4e-3, group=10, tasks=8, seed=4):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.group, self.tasks = group, tasks
        self.env = Reach(3, Reach.STRAIGHT, 6)
        self.policy = Policy(4)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.5, total_iters=50)

    def next_stage(self):
        self.env = Reach(6, Reach.STRAIGHT + Reach.DIAGONAL, 8)
        self.policy.widen(8)
        print("-- stage 2: eight moves")

    @torch.no_grad()
    def sample(self):
        tgt = self.env.targets(self.tasks, self.rng).repeat_interleave(self.group, 0)
        here = torch.zeros_like(tgt)
        xs, us = [], []
        for t in range(self.env.steps):
            x = torch.cat([(tgt - here) / 6, torch.full((len(tgt), 1), t / 8)], 1)
            u = torch.distributions.Categorical(logits=self.policy(x)).sample()
            here = here + self.env.moves[u]
            xs.append(x)
            us.append(u)
        dist0 = tgt.norm(dim=1)
        reward = 1 - (tgt - here).norm(dim=1) / dist0.clamp(min=1)
        return torch.stack(xs, 1), torch.stack(us, 1), reward

    def update(self):
        x, u, reward = self.sample()
        r = reward.view(self.tasks, self.group)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
        logp = torch.distributions.Categorical(logits=self.policy(x)).log_prob(u)
        loss = -(adv * logp).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 2.0)
        self.optimizer.step()
        self.scheduler.step()
        return reward.mean().item(), loss.item()


def main():
    tr = Trainer()
    for k in range(50):
        if k == 15:
            tr.next_stage()
        rew, loss = tr.update()
        if k % 5 == 4:
            print(f"{k + 1:3d} reward {rew:+.3f} loss {loss:+.4f}")


if __name__ == "__main__":
    main()

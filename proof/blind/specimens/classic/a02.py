"""GRPO on a small maze: a batch of start cells, a group of walks from each start."""
from dataclasses import dataclass, field

import torch
from torch import nn, Tensor
from torch.distributions import Categorical


@dataclass
class Config:
    size: int = 6
    starts: int = 6
    group: int = 8
    horizon: int = 14
    iterations: int = 40
    epochs: int = 2
    lr: float = 5e-3
    clip: float = 0.2
    seed: int = 11


class Maze:
    MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, size: int):
        self.size = size
        self.goal = torch.tensor([size - 1, size - 1])

    def sample_starts(self, n: int) -> Tensor:
        cells = torch.randint(0, self.size * self.size - 1, (n,))
        return torch.stack([cells // self.size, cells % self.size], 1)

    def step(self, pos: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        new = (pos + self.MOVES[action]).clamp(0, self.size - 1)
        return new, (new == self.goal).all(1)

    def encode(self, pos: Tensor) -> Tensor:
        flat = pos[..., 0] * self.size + pos[..., 1]
        return nn.functional.one_hot(flat, self.size * self.size).float()


class Policy(nn.Module):
    def __init__(self, n_in: int, n_act: int = 4, width: int = 48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, n_act))

    def forward(self, x: Tensor) -> Categorical:
        return Categorical(logits=self.body(x))


@dataclass
class Rollout:
    obs: list = field(default_factory=list)
    act: list = field(default_factory=list)
    logp: list = field(default_factory=list)
    mask: list = field(default_factory=list)

    def stacked(self):
        return tuple(torch.stack(v, 1) for v in (self.obs, self.act, self.logp, self.mask))


class Trainer:
    def __init__(self, cfg: Config):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.env = Maze(cfg.size)
        self.policy = Policy(cfg.size**2)
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=cfg.lr)

    @torch.no_grad()
    def collect(self):
        c = self.cfg
        pos = self.env.sample_starts(c.starts).repeat(c.group, 1)
        total = pos.shape[0]
        running = torch.ones(total, dtype=torch.bool)
        reward = torch.zeros(total)
        roll = Rollout()
        for t in range(c.horizon):
            x = self.env.encode(pos)
            dist = self.policy(x)
            a = dist.sample()
            roll.obs.append(x)
            roll.act.append(a)
            roll.logp.append(dist.log_prob(a))
            roll.mask.append(running.float())
            nxt, hit = self.env.step(pos, a)
            pos = torch.where(running[:, None], nxt, pos)
            reward += torch.where(running & hit, torch.tensor(1.0), torch.tensor(0.0)) - 0.03 * running.float()
            running = running & ~hit
        return roll.stacked(), reward

    def advantages(self, reward: Tensor) -> Tensor:
        r = reward.view(self.cfg.starts, self.cfg.group)
        a = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)
        return a.view(-1)

    def update(self, batch, reward):
        obs, act, old, mask = batch
        adv = self.advantages(reward)[:, None]
        for _ in range(self.cfg.epochs):
            new = self.policy(obs).log_prob(act)
            ratio = (new - old).exp()
            clipped = ratio.clamp(1 - self.cfg.clip, 1 + self.cfg.clip)
            per_step = -torch.min(ratio * adv, clipped * adv)
            loss = ((per_step * mask).sum(1) / mask.sum(1)).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()

    def fit(self):
        for i in range(self.cfg.iterations):
            batch, reward = self.collect()
            loss = self.update(batch, reward)
            if i % 5 == 0:
                print(f"iter {i:03d} reward {reward.mean():.3f} loss {loss:.4f}")
        print("last", reward.mean().item())


if __name__ == "__main__":
    Trainer(Config()).fit()

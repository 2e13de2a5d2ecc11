"""Group PPO on a foraging task. Usage: python a34.py"""
import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class Batch(NamedTuple):
    obs: torch.Tensor
    actions: torch.Tensor
    logp: torch.Tensor
    adv: torch.Tensor


class Forage:
    """An animal on a circle of 12 bushes with berries. Eat, go left, go right. Berries are different on each map."""

    def __init__(self, maps: int, animals: int, bushes: int = 12):
        self.maps, self.animals, self.bushes = maps, animals, bushes

    def reset(self):
        berries = torch.randint(0, 4, (self.maps, self.bushes)).float()
        self.berries = berries.repeat_interleave(self.animals, 0)
        self.at = torch.randint(0, self.bushes, (self.maps,)).repeat_interleave(self.animals)
        return self.obs()

    def obs(self):
        idx = (self.at[:, None] + torch.arange(-3, 4)) % self.bushes
        return self.berries.gather(1, idx) / 3

    def step(self, a):
        here = self.berries.gather(1, self.at[:, None])[:, 0]
        eaten = torch.where(a == 0, here.clamp(max=1), torch.zeros_like(here))
        self.berries = self.berries.scatter(1, self.at[:, None], (here - eaten)[:, None])
        self.at = (self.at + torch.where(a == 1, -1, torch.where(a == 2, 1, 0))) % self.bushes
        return self.obs(), eaten - 0.02 * (a != 0).float()


def gather(env, actor, horizon) -> tuple[Batch, float]:
    o = env.reset()
    obs, actions, logp, rew = [], [], [], []
    with torch.no_grad():
        for _ in range(horizon):
            lp = F.log_softmax(actor(o), -1)
            a = torch.multinomial(lp.exp(), 1)
            obs.append(o)
            actions.append(a)
            logp.append(lp.gather(1, a))
            o, r = env.step(a[:, 0])
            rew.append(r)
    ret = torch.stack(rew).sum(0)
    g = ret.view(env.maps, env.animals)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-8)).view(1, -1, 1).expand(horizon, -1, 1)
    flat = lambda v: v.flatten(0, 1)
    return Batch(flat(torch.stack(obs)), flat(torch.stack(actions)), flat(torch.stack(logp)), flat(adv)), ret.mean().item()


def surrogate(new, old, adv, eps):
    ratio = torch.exp(new - old)
    clipped = torch.clamp(ratio, 1.0 - eps, 1.0 + eps)
    return torch.max(ratio * adv, clipped * adv)


def optimise(actor, opt, b: Batch, epochs=6, minibatches=4, eps=0.1, ent=0.003):
    n = len(b.obs)
    for _ in range(epochs):
        for mb in torch.randperm(n).split(math.ceil(n / minibatches)):
            lp = F.log_softmax(actor(b.obs[mb]), -1)
            new = lp.gather(1, b.actions[mb])
            entropy = -(lp.exp() * lp).sum(-1).mean()
            loss = -surrogate(new, b.logp[mb], b.adv[mb], eps).mean() - ent * entropy
            opt.zero_grad()
            loss.backward()
            opt.step()
    return entropy.item()


if __name__ == "__main__":
    torch.manual_seed(61)
    env = Forage(maps=8, animals=8)
    actor = nn.Sequential(nn.Linear(7, 64), nn.Tanh(), nn.Linear(64, 3))
    opt = torch.optim.Adam(actor.parameters(), lr=4e-3)
    for i in range(35):
        batch, ret = gather(env, actor, 16)
        ent = optimise(actor, opt, batch)
        if i % 5 == 4:
            print(f"[{i + 1}] berries {ret:.3f} entropy {ent:.3f}")

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import one_hot


class TreasureRoom:
    """A room of 5 x 5 with a treasure and a pit. The agent may also dig: digging on the treasure ends the episode with the
    prize, digging elsewhere costs a little, falling into the pit ends it with a loss."""

    ACTIONS = 5  # right, left, down, up, dig

    def __init__(self, layouts: int, tries: int):
        self.layouts, self.tries = layouts, tries
        self.n = layouts * tries
        self.delta = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])

    def reset(self):
        perm = torch.stack([torch.randperm(25)[:3] for _ in range(self.layouts)])
        perm = perm.repeat_interleave(self.tries, 0)
        self.me, self.gold, self.pit = (torch.stack([perm[:, k] // 5, perm[:, k] % 5], 1) for k in range(3))
        return self._see()

    def _see(self):
        def cell(p):
            return one_hot(p[:, 0] * 5 + p[:, 1], 25).float()

        rel = torch.cat([self.gold - self.me, self.pit - self.me], 1).float() / 4
        return torch.cat([cell(self.me), rel, (self.me == self.gold).all(1, keepdim=True).float()], 1)

    def step(self, a):
        self.me = (self.me + self.delta[a]).clamp(0, 4)
        dig = a == 4
        found = dig & (self.me == self.gold).all(1)
        fell = (self.me == self.pit).all(1)
        reward = torch.full((self.n,), -0.01)
        reward = torch.where(dig & ~found, torch.tensor(-0.06), reward)
        reward = torch.where(fell, torch.tensor(-0.6), reward)
        reward = torch.where(found, torch.tensor(1.0), reward)
        return self._see(), reward, found | fell


class Buffer:
    def __init__(self):
        self.rows: dict[str, list[torch.Tensor]] = {}

    def add(self, **kw):
        for k, v in kw.items():
            self.rows.setdefault(k, []).append(v)

    def get(self, k):
        return torch.stack(self.rows[k], dim=1)


def rollout(env: TreasureRoom, pi: nn.Module, limit: int):
    buf = Buffer()
    s = env.reset()
    alive = torch.ones(env.n)
    for _ in range(limit):
        with torch.no_grad():
            d = torch.distributions.Categorical(logits=pi(s))
            a = d.sample()
            lp = d.log_prob(a)
        s2, r, done = env.step(a)
        r = r * alive
        alive = alive * (~done).float()
        buf.add(s=s, a=a, lp=lp, r=r, alive=alive)
        s = s2
        if alive.sum() == 0:
            break
    return buf


def learn(pi, opt, buf, layouts, tries, epochs=3, eps=0.2):
    s, a, lp_old, alive = (buf.get(k) for k in ("s", "a", "lp", "alive"))
    ret = buf.get("r").sum(1)
    g = ret.view(layouts, tries)
    adv = ((g - g.mean(1, True)) / (g.std(1, keepdim=True) + 1e-5)).view(-1, 1)
    for _ in range(epochs):
        d = torch.distributions.Categorical(logits=pi(s))
        ratio = (d.log_prob(a) - lp_old).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
        loss = (pg * alive).sum() / alive.sum().clamp(min=1) - 0.002 * (d.entropy() * alive).sum() / alive.sum().clamp(min=1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(pi.parameters(), 1.0)
        opt.step()
    return ret.mean().item(), alive.sum(1).mean().item()


if __name__ == "__main__":
    torch.manual_seed(99)
    layouts, tries = 12, 8
    env = TreasureRoom(layouts, tries)
    pi = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, TreasureRoom.ACTIONS))
    opt = torch.optim.Adam(pi.parameters(), lr=4e-3)
    for i in range(60):
        ret, length = learn(pi, opt, rollout(env, pi, 16), layouts, tries)
        if i % 10 == 9:
            print(f"{i + 1:3d} return {ret:+.3f} length {length:.1f}")

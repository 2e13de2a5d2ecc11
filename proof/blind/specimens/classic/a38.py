import torch
import torch.nn as nn
from torch.distributions import Categorical


class Corridors:
    """Rooms in a snake of 5 x 9 cells: from the left upper corner to a door in the last column. Each decision is held for
    `skip` frames, of which the first moves the agent and the others let it coast (and may bump it against a wall)."""

    def __init__(self, maps, group, rows=5, cols=9, skip=3, max_steps=20):
        self.maps, self.group, self.rows, self.cols = maps, group, rows, cols
        self.skip, self.max_steps = skip, max_steps
        self.n = maps * group
        self.move = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def reset(self):
        self.door = torch.randint(0, self.rows, (self.maps,)).repeat_interleave(self.group)
        start = torch.randint(0, self.rows, (self.maps,)).repeat_interleave(self.group)
        self.pos = torch.stack([start, torch.zeros_like(start)], 1)
        self.frames = 0
        self.done = torch.zeros(self.n, dtype=torch.bool)
        return self.obs()

    def obs(self):
        target = torch.stack([self.door, torch.full_like(self.door, self.cols - 1)], 1)
        return torch.cat([self.pos / 8, (target - self.pos) / 8, torch.full((self.n, 1), self.frames / 100)], 1)

    def step(self, a):
        reward = torch.zeros(self.n)
        new = self.pos + self.move[a]
        hi = torch.tensor([self.rows - 1, self.cols - 1])
        wall = ((new < 0) | (new > hi)).any(1)
        new = torch.minimum(new.clamp(min=0), hi)
        self.pos = torch.where(self.done[:, None], self.pos, new)
        self.frames += self.skip
        arrived = (self.pos[:, 1] == self.cols - 1) & (self.pos[:, 0] == self.door) & ~self.done
        reward -= 0.02 * (~self.done).float() + 0.1 * (wall & ~self.done).float()
        reward += arrived.float()
        self.done = self.done | arrived
        return self.obs(), reward, self.frames >= self.max_steps


def run(env, net):
    obs, timeout = env.reset(), False
    data = []
    while not timeout and not env.done.all():
        alive = (~env.done).float()
        with torch.no_grad():
            d = Categorical(logits=net(obs))
            a = d.sample()
        nxt, r, timeout = env.step(a)
        data.append((obs, a, d.log_prob(a), r, alive))
        obs = nxt
    return [torch.stack(v, 1) for v in zip(*data)]


def main(iterations=40, epochs=2, lr=4e-3):
    torch.manual_seed(83)
    env = Corridors(maps=8, group=8)
    net = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 4))
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    for it in range(iterations):
        obs, act, old, rew, alive = run(env, net)
        ret = rew.sum(1).view(env.maps, env.group)
        adv = ((ret - ret.mean(1, keepdim=True)) / (ret.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        for _ in range(epochs):
            ratio = (Categorical(logits=net(obs)).log_prob(act) - old).exp()
            gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
            loss = -((gain * alive).sum(1) / alive.sum(1)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 10 == 9:
            print(f"{it + 1:3d} return {ret.mean():+.3f} length {alive.sum(1).mean():.1f}")


main()

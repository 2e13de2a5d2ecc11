from dataclasses import dataclass, field
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    seed: int = 0
    updates: int = 40
    starts_per_update: int = 4
    group_size: int = 8
    horizon: int = 80
    lr: float = 5e-3
    hidden: int = 32


@dataclass
class Rollout:
    states: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    valid: list = field(default_factory=list)

    def add(self, s, a, v):
        self.states.append(s)
        self.actions.append(a)
        self.valid.append(v)

    def pack(self):
        return torch.stack(self.states), torch.stack(self.actions), torch.stack(self.valid).float()


def cartpole_step(s, a):
    """Batched Barto-Sutton cart pole, s: [n, 4]."""
    x, xd, th, thd = s.unbind(-1)
    force = torch.where(a == 1, 10.0, -10.0)
    c, sn = th.cos(), th.sin()
    tmp = (force + 0.05 * thd ** 2 * sn) / 1.1
    thacc = (9.8 * sn - c * tmp) / (0.5 * (4 / 3 - 0.1 * c ** 2 / 1.1))
    xacc = tmp - 0.05 * thacc * c / 1.1
    nxt = torch.stack([x + 0.02 * xd, xd + 0.02 * xacc, th + 0.02 * thd, thd + 0.02 * thacc], -1)
    fell = (nxt[:, 0].abs() > 2.4) | (nxt[:, 2].abs() > 12 * math.pi / 180)
    return nxt, fell


class PolicyNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.l1 = nn.Linear(4, hidden)
        self.l2 = nn.Linear(hidden, 2)

    def forward(self, s):
        return self.l2(torch.tanh(self.l1(s * s.new_tensor([1.0, 0.5, 5.0, 0.5]))))


def play(net, cfg):
    start = (torch.rand(cfg.starts_per_update, 4) - 0.5) * 0.3
    s = start.repeat_interleave(cfg.group_size, 0)
    n = s.shape[0]
    # the last env of each group shows how the current policy does without noise
    monitor = (torch.arange(n) % cfg.group_size) == cfg.group_size - 1
    alive = torch.ones(n, dtype=torch.bool)
    steps = torch.zeros(n)
    out = Rollout()
    with torch.no_grad():
        for _ in range(cfg.horizon):
            p = F.softmax(net(s), -1)
            a = torch.where(monitor, p.argmax(-1), torch.multinomial(p, 1).squeeze(-1))
            out.add(s, a, alive)
            s2, fell = cartpole_step(s, a)
            steps += alive.float()
            alive = alive & ~fell
            s = torch.where(alive[:, None], s2, s)
            if not alive.any():
                break
    return out, steps, steps[monitor].mean().item()


def group_advantage(r, g):
    r = r.reshape(-1, g)
    centred = r - r.mean(-1, keepdim=True)
    return (centred / (r.std(-1, keepdim=True) + 1e-6)).reshape(-1)


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    net = PolicyNet(cfg.hidden)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    for it in range(1, cfg.updates + 1):
        roll, steps, shown = play(net, cfg)
        S, A, V = roll.pack()
        adv = group_advantage(steps, cfg.group_size)
        lp = F.log_softmax(net(S), -1).gather(-1, A.unsqueeze(-1)).squeeze(-1)
        loss = -((lp * adv) * V).sum() / V.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 5 == 0:
            print(f"{it:3d} loss {loss.item():+.4f} steps {steps.mean().item():5.1f} greedy {shown:5.1f}")


if __name__ == "__main__":
    main()

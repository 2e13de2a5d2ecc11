import argparse
import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument('--seed', type=int, default=5)
ap.add_argument('--iterations', type=int, default=60)
ap.add_argument('--eval-every', type=int, default=4)
ap.add_argument('--group', type=int, default=8)
ap.add_argument('--starts', type=int, default=6)
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(args.seed)


class Pendulumish:
    """cart on a line, force -1 / 0 / +1, noise on the velocity; reward is closeness to the origin"""

    def __init__(self, state):
        self.x, self.v = state[:, 0].clone(), state[:, 1].clone()

    def obs(self):
        return torch.stack([self.x, self.v], 1)

    def step(self, a):
        self.v = 0.9 * self.v + 0.3 * (a - 1).float() + 0.05 * torch.randn_like(self.v)
        self.x = self.x + self.v
        return -self.x.abs()


net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
opt = torch.optim.Adam(net.parameters(), lr=4e-3)


def new_starts(n, generator=None):
    return torch.randn(n, 2, generator=generator) * torch.tensor([2.0, 0.5])


def evaluate():
    """greedy, always on the same 32 starts, so that the numbers can be compared"""
    torch.manual_seed(args.seed)
    env = Pendulumish(new_starts(32))
    total = 0.0
    with torch.no_grad():
        for _ in range(8):
            total += env.step(net(env.obs()).argmax(1)).mean().item()
    return total


for it in range(args.iterations):
    env = Pendulumish(new_starts(args.starts).repeat_interleave(args.group, 0))
    O, A, L, R = [], [], [], 0.0
    with torch.no_grad():
        for _ in range(8):
            o = env.obs()
            d = torch.distributions.Categorical(logits=net(o))
            a = d.sample()
            O.append(o); A.append(a); L.append(d.log_prob(a))
            R = R + env.step(a)
    O, A, L = torch.stack(O), torch.stack(A), torch.stack(L)
    g = R.view(args.starts, args.group)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-5)).view(1, -1)
    for _ in range(3):
        ratio = torch.exp(torch.distributions.Categorical(logits=net(O)).log_prob(A) - L)
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if (it + 1) % args.eval_every == 0:
        score = evaluate()
        if (it + 1) % 12 == 0:
            print(f'iter {it + 1} train {R.mean().item():.3f} eval {score:.3f}')

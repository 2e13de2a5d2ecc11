"""Rollouts run in numpy on the same memory as the torch weights (``.numpy()`` does not copy), which is much faster for a
single observation."""
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(4)
torch.manual_seed(4)
torch.set_num_threads(1)


class NumpyActor:
    def __init__(self, net):
        self.attach(net)

    def attach(self, net):
        self.w1, self.b1, self.w2, self.b2 = [p.detach().numpy() for p in net.parameters()]

    def probs(self, x):
        h = np.tanh(x @ self.w1.T + self.b1)
        z = h @ self.w2.T + self.b2
        e = np.exp(z - z.max())
        return e / e.sum()

    def act(self, x):
        p = self.probs(x)
        return int(rng.choice(len(p), p=p.astype(np.float64) / p.astype(np.float64).sum()))


def lander(actor, height, wind, T=8):
    """burn left / none / right; land in the middle and slowly"""
    x, v, track = wind, 0.0, []
    for t in range(T):
        o = np.array([x, v, height, t / T], dtype=np.float32)
        a = actor.act(o)
        track.append((o, a))
        v = 0.8 * v + 0.5 * (a - 1) + 0.1 * wind
        x = x + v
    return track, -abs(x) - 0.5 * abs(v) * height


net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
actor = NumpyActor(net)
best, best_state = -1e9, None

for it in range(60):
    O, A, ADV, means = [], [], [], []
    for _ in range(5):
        height, wind = rng.uniform(0.5, 1.5), rng.normal() * 2
        runs = [lander(actor, height, wind) for _ in range(8)]
        r = torch.tensor([x[1] for x in runs], dtype=torch.float32)
        adv = (r - r.mean()) / (r.std() + 1e-6)
        means.append(r.mean().item())
        for (track, _), a in zip(runs, adv):
            for o, act in track:
                O.append(o), A.append(act), ADV.append(a)
    O, A, ADV = torch.from_numpy(np.stack(O)), torch.tensor(A), torch.stack(ADV)
    with torch.no_grad():
        old = torch.log_softmax(net(O), -1).gather(1, A[:, None])[:, 0]
    for _ in range(3):
        new = torch.log_softmax(net(O), -1).gather(1, A[:, None])[:, 0]
        ratio = (new - old).exp()
        loss = -torch.min(ratio * ADV, ratio.clamp(0.8, 1.2) * ADV).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    score = float(np.mean(means))
    if score > best:
        best, best_state = score, [p.detach().clone() for p in net.parameters()]
    if it == 15:                     # go back to the best weights once, then train on with half the rate
        for p, b in zip(net.parameters(), best_state):
            p.data = b.clone()
        for g in opt.param_groups:
            g["lr"] *= 0.5
    if it % 10 == 9:
        print(it + 1, "score", round(score, 3), "best", round(best, 3))

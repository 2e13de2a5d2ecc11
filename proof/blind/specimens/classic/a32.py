"""Short tours with attention over cities (Kool et al., small): REINFORCE with a greedy roll-out baseline.

The baseline is the length of the tour that a frozen copy of the network makes greedily on the same cities. The copy is replaced
when the current network beats it on a fixed set of problems. A city that was visited is masked, in play and in the score alike,
because both come out of the one decoder below.
"""
import copy

import torch
import torch.nn as nn

CITIES, BATCH = 8, 64


class Pointer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(2, d), nn.ReLU(), nn.Linear(d, d))
        self.query = nn.Linear(3 * d, d)
        self.key = nn.Linear(d, d)

    def tour(self, xy, greedy=False):
        n = len(xy)
        h = self.embed(xy)
        mean, keys = h.mean(1), self.key(h)
        visited = torch.zeros(n, CITIES, dtype=torch.bool)
        visited[:, 0] = True
        here = torch.zeros(n, dtype=torch.long)
        order, total = [here], 0.0
        rows = torch.arange(n)
        for _ in range(CITIES - 1):
            q = self.query(torch.cat([mean, h[:, 0], h[rows, here]], -1))
            score = 5 * torch.tanh((keys @ q[:, :, None])[..., 0] / 5.6)
            logp = score.masked_fill(visited, float("-inf")).log_softmax(-1)
            here = logp.argmax(-1) if greedy else torch.multinomial(logp.exp(), 1)[:, 0]
            total = total + logp[rows, here]
            visited = visited.scatter(1, here[:, None], True)
            order.append(here)
        return torch.stack(order, 1), total


def length(xy, order):
    path = xy.gather(1, order[..., None].expand(-1, -1, 2))
    return (path - path.roll(-1, 1)).norm(dim=-1).sum(1)


torch.manual_seed(5)
net = Pointer()
frozen = copy.deepcopy(net)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
exam = torch.rand(200, CITIES, 2)

for it in range(150):
    xy = torch.rand(BATCH, CITIES, 2)
    order, logp = net.tour(xy)
    cost = length(xy, order)
    with torch.no_grad():
        greedy = length(xy, frozen.tour(xy, greedy=True)[0])
    loss = ((cost - greedy) * logp).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if it % 25 == 24:
        with torch.no_grad():
            mine = length(exam, net.tour(exam, greedy=True)[0]).mean()
            best = length(exam, frozen.tour(exam, greedy=True)[0]).mean()
        if mine < best:
            frozen.load_state_dict(net.state_dict())
        print(f"{it + 1:3d} sampled {cost.mean():.3f} greedy {mine:.3f} baseline {best:.3f}")

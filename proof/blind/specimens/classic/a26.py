import numpy as np
import torch
from torch import nn

# A frog on a row of stones. Far jumps are quick but slip more often. One group per pond; the gradients of all ponds are summed
# up before the one step of the optimizer. Credit: jumps still to come, against the pond's mean at the same moment.

rng = np.random.default_rng(404)
torch.manual_seed(404)
JUMPS, POND_LEN, LIMIT = 3, 12, 9
FROGS, PONDS = 16, 5


def make_pond():
    return rng.uniform(0.0, 0.5, size=POND_LEN).astype(np.float32)


def look(pond, at):
    ahead = np.zeros((len(at), 4), dtype=np.float32)
    for k in range(1, 5):
        ahead[:, k - 1] = pond[np.minimum(at + k, POND_LEN - 1)]
    return torch.tensor(np.concatenate([ahead, (at / POND_LEN)[:, None].astype(np.float32)], 1))


def hop(pond, at, jump):
    to = np.minimum(at + jump + 1, POND_LEN - 1)
    slip = rng.random(len(at)) < pond[to] * (0.5 + 0.5 * jump)
    return np.where(slip, np.maximum(to - 2, 0), to)


brain = nn.Sequential(nn.Linear(5, 40), nn.LeakyReLU(), nn.Linear(40, JUMPS))
opt = torch.optim.Adam(brain.parameters(), lr=8e-3)

for season in range(60):
    opt.zero_grad()
    mean_score = 0.0
    for _ in range(PONDS):
        pond = make_pond()
        at = np.zeros(FROGS, dtype=np.int64)
        logps, gains, active = [], [], []
        for t in range(LIMIT):
            lp = brain(look(pond, at)).log_softmax(1)
            cdf = lp.detach().exp().cumsum(1)
            u = torch.tensor(rng.random((FROGS, 1)), dtype=torch.float32)
            jump = torch.searchsorted(cdf, u, right=True).clamp(max=JUMPS - 1)
            logps.append(lp.gather(1, jump)[:, 0])
            on = at < POND_LEN - 1
            new = np.where(on, hop(pond, at, jump[:, 0].numpy()), at)
            gains.append(torch.tensor((new - at) / POND_LEN - 0.05 * on, dtype=torch.float32))
            active.append(torch.tensor(on, dtype=torch.float32))
            at = new
        gains, active = torch.stack(gains), torch.stack(active)
        togo = gains.flip(0).cumsum(0).flip(0)
        adv = togo - togo.mean(1, keepdim=True)
        loss = -(torch.stack(logps) * adv * active).sum() / (FROGS * PONDS)
        loss.backward()
        mean_score += gains.sum(0).mean().item() / PONDS
    opt.step()
    if season % 12 == 11:
        print(f"season {season + 1:2d}: {mean_score:+.3f}")

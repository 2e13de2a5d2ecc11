# %% [markdown]
# Week 3 exercise: REINFORCE on a pole that must be balanced. The dynamics are written out so that no gym is needed.

# %%
import math

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(3)
rs = np.random.RandomState(3)
N, T, GAMMA = 16, 150, 0.98

# %%
def physics(s, a):
    x, xd, th, thd = s.T
    force = np.where(a == 1, 10.0, -10.0)
    c, sn = np.cos(th), np.sin(th)
    tmp = (force + 0.05 * thd**2 * sn) / 1.1
    thacc = (9.8 * sn - c * tmp) / (0.5 * (4 / 3 - 0.1 * c**2 / 1.1))
    xacc = tmp - 0.05 * thacc * c / 1.1
    nxt = np.stack([x + 0.02 * xd, xd + 0.02 * xacc, th + 0.02 * thd, thd + 0.02 * thacc], 1)
    fell = (np.abs(nxt[:, 0]) > 2.4) | (np.abs(nxt[:, 2]) > 12 * math.pi / 180)
    return nxt, fell

# %%
net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)

# %%
for it in range(50):
    s = rs.uniform(-0.05, 0.05, (N, 4))
    up = np.ones(N, bool)
    S, A, UP = [], [], []
    for t in range(T):
        with torch.no_grad():
            z = net(torch.as_tensor(s, dtype=torch.float32))
        # the Gumbel-max trick: the winner of logits plus Gumbel noise is a draw from the softmax
        g = -torch.log(-torch.log(torch.rand_like(z).clamp_min(1e-20)))
        a = (z + g).argmax(1).numpy()
        S.append(s.copy()); A.append(a); UP.append(up.copy())
        s, fell = physics(s, a)
        up = up & ~fell
        if not up.any():
            break
    S = torch.as_tensor(np.array(S), dtype=torch.float32)
    A = torch.as_tensor(np.array(A))
    M = torch.as_tensor(np.array(UP), dtype=torch.float32)
    # one point for every step begun while the pole stands; returns are those still to come
    G = torch.zeros_like(M)
    run = torch.zeros(N)
    for t in reversed(range(len(M))):
        run = M[t] * (1 + GAMMA * run)
        G[t] = run
    valid = M.bool()
    adv = (G - G[valid].mean()) / (G[valid].std() + 1e-8)
    logp = net(S).log_softmax(-1).gather(-1, A.unsqueeze(-1)).squeeze(-1)
    loss = -(logp * adv * M).sum() / M.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 7 == 0 or it == 49:
        print(f"{it:3d}  mean length {M.sum(0).mean():6.1f}  loss {loss.item():+.3f}")

"""A bandit with contexts, as in a notebook: groups and their baseline in numpy, three updates for each rollout."""

import numpy as np
import torch
import torch.nn as nn

np.random.seed(7)
torch.manual_seed(7)
ctx_dim, n_arms, G, C = 5, 6, 8, 12
truth = np.random.randn(ctx_dim, n_arms)
pi = nn.Sequential(nn.Linear(ctx_dim, 32), nn.ReLU(), nn.Linear(32, n_arms))
opt = torch.optim.Adam(pi.parameters(), lr=3e-3)
for it in range(12):
    ctx = np.random.randn(C, ctx_dim).astype(np.float32)
    X = torch.tensor(np.repeat(ctx, G, axis=0))
    with torch.no_grad():
        p = torch.softmax(pi(X), -1)
        arm = torch.multinomial(p, 1)[:, 0]
        logp_old = torch.log(p[torch.arange(len(arm)), arm])
    R = np.repeat(ctx @ truth, G, axis=0)[np.arange(len(arm)), arm.numpy()] + 0.3 * np.random.randn(len(arm))
    R = R.reshape(C, G)
    A = ((R - R.mean(axis=1, keepdims=True)) / (R.std(axis=1, keepdims=True) + 1e-6)).reshape(-1)
    A = torch.tensor(A, dtype=torch.float32)
    for _ep in range(3):
        logp = torch.log_softmax(pi(X), -1)[torch.arange(len(arm)), arm]
        ratio = torch.exp(logp - logp_old)
        obj = torch.minimum(ratio * A, torch.clip(ratio, 0.8, 1.2) * A)
        loss = -obj.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(it, R.mean().round(3))

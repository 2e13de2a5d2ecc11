# %% [markdown]
# ## Which article for which reader?  (contextual bandit, group-relative policy gradient)

# %%
import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)

n_feat, n_arms = 8, 6
taste = rng.normal(size=(n_feat, n_arms)) * 0.8


def clicks(readers, arms):
    """Noisy click-through, between 0 and about 1."""
    u = 1 / (1 + np.exp(-(readers @ taste)[np.arange(len(arms)), arms]))
    return (rng.random(len(arms)) < u).astype(np.float32)


# %%
net = nn.Sequential(nn.Linear(n_feat, 32), nn.ReLU(), nn.Linear(32, n_arms))
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

readers_per_batch = 24
group = 12
steps = 120
eps = 0.2


def heat(step):
    # explore freely at first, settle down later
    if step < 25:
        return 1.0
    return max(0.35, 1.0 - (step - 25) / 60)


def choose(readers, tau):
    with torch.no_grad():
        z = net(torch.from_numpy(readers)).numpy() / tau
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z)
    p /= p.sum(axis=1, keepdims=True)
    cdf = p.cumsum(axis=1)
    u = rng.random((len(readers), 1))
    return np.minimum((u > cdf).sum(axis=1), n_arms - 1)


# %%
history = []
for step in range(steps):
    people = rng.normal(size=(readers_per_batch, n_feat)).astype(np.float32)
    tau = heat(step)
    batch = np.repeat(people, group, axis=0)
    arms = choose(batch, tau)
    r = clicks(batch, arms)

    g = r.reshape(readers_per_batch, group)
    a = (g - g.mean(1, keepdims=True)) / (g.std(1, keepdims=True) + 1e-4)
    adv = torch.from_numpy(a.reshape(-1))

    x = torch.from_numpy(batch)
    y = torch.from_numpy(arms)
    with torch.no_grad():
        old = torch.log_softmax(net(x), -1).gather(1, y[:, None]).squeeze(1)
    for epoch in range(2):
        logp = torch.log_softmax(net(x), -1).gather(1, y[:, None]).squeeze(1)
        ratio = torch.exp(logp - old)
        obj = torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
        loss = -obj.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    history.append(r.mean())
    if step % 15 == 14:
        print(f"step {step + 1}: clicks {np.mean(history[-15:]):.3f}  heat {tau:.2f}")

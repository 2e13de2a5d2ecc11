# %% [markdown]
# # Lock picking with a group baseline
# A lock shows a 12-dim code. The policy turns three dials (5 positions each). Reward: dials that are right, easy locks pay more.

# %%
import torch, torch.nn as nn

torch.manual_seed(5)
n_locks, n_tries = 16, 8
secret = torch.randn(12, 15)

# %%
def dial_targets(code):
    return (code @ secret).view(-1, 3, 5).argmax(-1)

def pay(code, dials):
    right = (dials == dial_targets(code)).float().sum(-1)
    bonus = torch.where(code[:, 0] > 0, 3.0, 0.0)
    return right + bonus

# %%
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 15))
optim = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
history = []

# %%
for it in range(200):
    locks = torch.randn(n_locks, 12)
    x = locks.repeat_interleave(n_tries, dim=0)
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=model(x).view(-1, 3, 5))
        dials = dist.sample()
        logp_old = dist.log_prob(dials).sum(-1)
        r = pay(x, dials)
        per_lock = r.view(n_locks, n_tries)
        mu, sd = per_lock.mean(1), per_lock.std(1)
        adv = (r - mu.repeat(n_tries)) / (sd.repeat(n_tries) + 1e-3)
    for _ in range(2):
        logp = torch.distributions.Categorical(logits=model(x).view(-1, 3, 5)).log_prob(dials).sum(-1)
        rho = (logp - logp_old).exp()
        objective = torch.minimum(rho * adv, rho.clamp(0.8, 1.2) * adv).mean()
        optim.zero_grad(); (-objective).backward(); optim.step()
    history.append((dials == dial_targets(x)).float().mean().item())

# %%
for i in range(0, len(history), 20):
    print(i, "dials right: %.3f" % (sum(history[i:i + 20]) / 20))

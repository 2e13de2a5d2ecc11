# %% Group-relative policy gradient: heating a kiln in stages
import torch
import torch.nn as nn
import torch.nn.functional as F

# %% settings
torch.manual_seed(35)
recipes, runs, stages = 8, 8, 10
ent_coef, ent_decay = 0.003, 0.94

# %% the kiln: heat of 0..4 at each stage; the piece wants a profile that depends on clay and glaze
def wanted(clay, glaze, t):
    u = t / (stages - 1)
    return 4 * (clay * (1 - (2 * u - 1) ** 2) + (1 - clay) * u) * (0.6 + 0.4 * glaze)


def fire(policy, clay, glaze):
    n = len(clay)
    temp = torch.zeros(n)
    xs, acts, olds, err = [], [], [], torch.zeros(n)
    for t in range(stages):
        x = torch.stack([clay, glaze, temp / 4, torch.full((n,), t / stages), wanted(clay, glaze, t) / 4], 1)
        logp = F.log_softmax(policy(x), -1)
        a = torch.multinomial(logp.exp(), 1)
        temp = 0.5 * temp + 0.5 * a[:, 0].float()
        err = err + (temp - wanted(clay, glaze, t)).abs()
        xs.append(x); acts.append(a); olds.append(logp.gather(1, a))
    return torch.stack(xs, 1), torch.stack(acts, 1), torch.stack(olds, 1), -err / stages

# %% policy
policy = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 5))
opt = torch.optim.Adam(policy.parameters(), lr=8e-3)

# %% training
curve = []
for it in range(110):
    clay = torch.rand(recipes).repeat_interleave(runs)
    glaze = torch.rand(recipes).repeat_interleave(runs)
    with torch.no_grad():
        x, a, old, reward = fire(policy, clay, glaze)
    r = reward.view(recipes, runs)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).view(-1, 1, 1)
    for _ in range(2):
        logp = F.log_softmax(policy(x), -1)
        new = logp.gather(2, a)
        ratio = (new - old).exp()
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() - ent_coef * entropy
        opt.zero_grad()
        loss.backward()
        opt.step()
    ent_coef = ent_coef / ent_decay
    curve.append(reward.mean().item())
    if it % 10 == 9:
        print(f"{it + 1:3d} reward {curve[-1]:+.3f} entropy {entropy.item():.3f}")

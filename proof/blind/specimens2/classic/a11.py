import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(15)
torch.set_num_threads(1)


class CliffEnv:
    """batch of walkers on a 3 x 7 cliff; an episode ends in the abyss or at the goal"""

    def __init__(self, row, col):
        self.r, self.c = row.clone(), col.clone()
        self.done = torch.zeros(len(row), dtype=torch.bool)

    def observe(self):
        return self.r * 7 + self.c

    def step(self, action):
        dr = torch.tensor([-1, 1, 0, 0])[action]
        dc = torch.tensor([0, 0, -1, 1])[action]
        r, c = (self.r + dr).clamp(0, 2), (self.c + dc).clamp(0, 6)
        live = ~self.done
        self.r, self.c = torch.where(live, r, self.r), torch.where(live, c, self.c)
        goal = live & (self.r == 2) & (self.c == 6)
        fell = live & (self.r == 2) & (self.c > 0) & (self.c < 6)
        reward = live * -0.05 + goal * 2.0 - fell * 1.0 + live * 0.1 * dc
        self.done = self.done | goal | fell
        return reward


class Memory:
    def __init__(self):
        self.obs, self.act, self.logp, self.rew, self.live = [], [], [], [], []

    def push(self, obs, act, logp, rew, live):
        self.obs.append(obs)
        self.act.append(act)
        self.logp.append(logp)
        self.rew.append(rew)
        self.live.append(live)

    def tensors(self):
        return [torch.stack(x, dim=1) for x in (self.obs, self.act, self.logp, self.rew, self.live)]


pi = nn.Sequential(nn.Embedding(21, 48), nn.ReLU(), nn.Linear(48, 4))
opt = torch.optim.Adam(pi.parameters(), lr=1e-2)
GROUP, STARTS, T = 12, 4, 14

for it in range(60):
    row = torch.randint(0, 2, (STARTS,)).repeat_interleave(GROUP)
    col = torch.randint(0, 5, (STARTS,)).repeat_interleave(GROUP)
    env, mem = CliffEnv(row, col), Memory()
    with torch.no_grad():
        for _ in range(T):
            obs = env.observe()
            lp = F.log_softmax(pi(obs), -1)
            act = torch.multinomial(lp.exp(), 1)
            live = ~env.done
            rew = env.step(act.squeeze(1))
            mem.push(obs, act.squeeze(1), lp.gather(1, act).squeeze(1), rew, live)
    obs, act, old, rew, live = mem.tensors()
    ret = rew.sum(1).view(STARTS, GROUP)
    adv = ((ret - ret.mean(1, keepdim=True)) / (ret.std(1, keepdim=True) + 1e-5)).view(-1, 1)
    weight = torch.ones_like(rew)
    for _ in range(3):
        new = F.log_softmax(pi(obs), -1).gather(2, act.unsqueeze(2)).squeeze(2)
        ratio = (new - old).exp()
        per_step = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        loss = -(per_step * weight).sum() / weight.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if it % 10 == 9:
        print(f"{it + 1} return {ret.mean():.3f} steps {live.sum(1).float().mean():.2f}")

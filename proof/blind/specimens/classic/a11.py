# PPO with group baselines for a traffic light. State: cars waiting on four arms, and which pair has green.
import torch
from torch import nn


class Crossing:
    def __init__(self, n):
        self.n = n

    def reset(self, rates):
        self.rates = rates
        self.q = torch.randint(0, 4, (len(rates) // REPEAT, 4)).repeat_interleave(REPEAT, 0).float()
        self.green = torch.zeros(self.n, dtype=torch.long)
        return self.view()

    def view(self):
        return torch.cat([self.q / 5, nn.functional.one_hot(self.green, 2).float(), self.rates], 1)

    def step(self, a):
        switched = a != self.green
        self.green = a
        out = torch.zeros(self.n, 4)
        out[a == 0, :2] = 1.5
        out[a == 1, 2:] = 1.5
        out[switched] = 0.0
        self.q = (self.q - out).clamp(min=0)
        self.q = (self.q + torch.poisson(self.rates)).clamp(max=12)
        return self.view(), -self.q.sum(1) / 20


SITUATIONS, REPEAT, STEPS = 6, 10, 16
torch.manual_seed(2024)
N = SITUATIONS * REPEAT
actor = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
env = Crossing(N)

for iteration in range(50):
    rates = (torch.rand(SITUATIONS, 4) * 0.9).repeat_interleave(REPEAT, 0)
    obs = env.reset(rates)
    b_obs, b_act, b_logp, b_rew = [], [], [], []
    for _ in range(STEPS):
        with torch.no_grad():
            dist = torch.distributions.Categorical(logits=actor(obs))
            act = dist.sample()
        b_obs.append(obs)
        b_act.append(act)
        b_logp.append(dist.log_prob(act))
        obs, rew = env.step(act)
        b_rew.append(rew)

    total = torch.stack(b_rew).sum(0).reshape(SITUATIONS, REPEAT)
    adv = (total - total.mean(dim=1, keepdim=True)) / (total.std(dim=1, keepdim=True) + 1e-8)

    flat_obs = torch.stack(b_obs).flatten(0, 1)
    flat_act = torch.stack(b_act).flatten()
    flat_logp = torch.stack(b_logp).flatten()
    flat_adv = adv.reshape(1, N, 1).expand(STEPS, N, 1).reshape(-1, 1)

    for epoch in range(3):
        for idx in torch.randperm(STEPS * N).split(240):
            logp = torch.distributions.Categorical(logits=actor(flat_obs[idx])).log_prob(flat_act[idx])
            ratio = torch.exp(logp - flat_logp[idx])
            a = flat_adv[idx]
            surrogate = torch.min(ratio * a, torch.clamp(ratio, 0.8, 1.2) * a)
            loss = -surrogate.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if iteration % 10 == 9:
        print(f"iteration {iteration + 1}, waiting {-total.mean().item():.3f}")

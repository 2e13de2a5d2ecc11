# Exercise 4: group-relative policy gradient on "guess the hidden direction"
import torch
from torch import nn
torch.manual_seed(3)
torch.set_num_threads(1)

n_envs = 8          # different tasks per batch
n_rollouts = 8      # rollouts per task

class Policy(nn.Module):
    def __init__(self, obs=4, hidden=32, actions=6):
        super().__init__()
        self.l1 = nn.Linear(obs, hidden)
        self.l2 = nn.Linear(hidden, actions)
    def forward(self, x):
        return self.l2(torch.relu(self.l1(x)))

angles = torch.arange(6) * (2 * torch.pi / 6)
dirs = torch.stack([angles.cos(), angles.sin()], 1)

def tasks(n):
    where = torch.rand(n) * 2 * torch.pi
    scale = 0.2 + 4 * torch.rand(n)
    v = torch.stack([where.cos(), where.sin()], 1) * scale[:, None]
    return torch.cat([v, scale[:, None], torch.ones(n, 1)], 1)

policy = Policy()
optim = torch.optim.Adam(policy.parameters(), lr=1e-2)
for epoch in range(120):
    obs = tasks(n_envs)
    x = obs.unsqueeze(1).expand(n_envs, n_rollouts, 4)
    logits = policy(x)
    dist = torch.distributions.Categorical(logits=logits)
    a = dist.sample()
    reward = (dirs[a] * x[..., :2]).sum(-1) + 3 * x[..., 2]
    baseline = reward.mean(dim=0, keepdim=True)
    spread = reward.std(dim=0, keepdim=True)
    advantage = (reward - baseline) / (spread + 1e-6)
    loss = -(dist.log_prob(a) * advantage.detach()).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    if epoch % 20 == 19:
        cos = (dirs[a] * x[..., :2]).sum(-1) / x[..., :2].norm(dim=-1)
        print("epoch", epoch + 1, "cosine", round(cos.mean().item(), 3))

"""GRPO on short episodes: a start is played by several members of a group, rows [B, T], a mask behind the end."""

import torch
from torch import nn

STARTS, GROUP, LENGTH, CELLS, ACTIONS, EPOCHS = 6, 8, 8, 9, 3, 2


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, ACTIONS))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


def play(policy, start):
    place, goal = start.clone(), start.max() + 2
    alive = torch.ones(len(start), dtype=torch.bool)
    observations, actions, logps, masks, score = [], [], [], [], torch.zeros(len(start))
    for t in range(LENGTH):
        obs = torch.stack([(place - goal) / CELLS, torch.full_like(place, t / LENGTH)], dim=-1)
        with torch.no_grad():
            dist = policy(obs)
            action = dist.sample()
            logps.append(dist.log_prob(action))
        observations.append(obs)
        actions.append(action)
        masks.append(alive.float())
        place = place + alive.float() * (action.float() - 1 + 0.1 * torch.randn(len(start)))
        reached = place >= goal
        score = score + alive.float() * (reached.float() - 0.02)
        alive = alive & ~reached
    return [torch.stack(parts, dim=1) for parts in (observations, actions, logps, masks)] + [score]


def train(iterations=5):
    torch.manual_seed(4)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for iteration in range(iterations):
        start = (2 * torch.rand(STARTS)).repeat_interleave(GROUP)
        obs, actions, old, mask, score = play(policy, start)
        table = score.view(STARTS, GROUP)
        advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
        for _ in range(EPOCHS):
            new = policy(obs).log_prob(actions)
            ratio = torch.exp(new - old)
            gain = torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
            loss = -(gain * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{iteration} {score.mean().item():.6f}", flush=True)


if __name__ == "__main__":
    train()

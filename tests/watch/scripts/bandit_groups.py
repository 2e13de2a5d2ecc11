"""GRPO on a contextual bandit: each context is drawn several times, rewards are compared within the context."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

CONTEXTS, WIDTH, ACTIONS, GROUP, EPOCHS, CLIP = 12, 6, 5, 8, 3, 0.2


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(WIDTH, 32), nn.Linear(32, ACTIONS)

    def forward(self, states):
        return self.out(torch.relu(self.hidden(states)))


def logprobs_of(policy, states, actions):
    return F.log_softmax(policy(states), dim=-1).gather(1, actions.unsqueeze(1)).squeeze(1)


def train(iterations=5):
    torch.manual_seed(1)
    policy, best = Policy(), torch.randn(WIDTH, ACTIONS)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for iteration in range(iterations):
        contexts = torch.randn(CONTEXTS, WIDTH)
        states = contexts.repeat_interleave(GROUP, dim=0)
        with torch.no_grad():
            probabilities = F.softmax(policy(states), dim=-1)
            actions = torch.multinomial(probabilities, 1).squeeze(1)
            old = logprobs_of(policy, states, actions)
        rewards = (states @ best)[torch.arange(len(states)), actions] + 0.1 * torch.randn(len(states))
        table = rewards.view(CONTEXTS, GROUP)
        advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
        for _ in range(EPOCHS):
            new = logprobs_of(policy, states, actions)
            ratio = torch.exp(new - old)
            clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
            loss = -torch.min(ratio * advantages, clipped * advantages).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{iteration} {rewards.mean().item():.6f}", flush=True)


if __name__ == "__main__":
    train()

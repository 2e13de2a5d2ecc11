"""REINFORCE with lists: one environment in Python, log-probs kept as they are drawn, returns of each episode."""

import math
import random

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(2, 24), nn.Linear(24, 2)
        self.saved = []

    def forward(self, x):
        return F.softmax(self.affine2(torch.tanh(self.affine1(x))), dim=1)


def choose(policy, state):
    probabilities = policy(torch.tensor(state, dtype=torch.float32).unsqueeze(0))
    dist = Categorical(probabilities)
    action = dist.sample()
    policy.saved.append(dist.log_prob(action))
    return action.item()


def move(state, action, chance):
    place, speed = state
    speed = 0.9 * speed + (0.1 if action == 1 else -0.1) + 0.02 * chance.uniform(-1, 1)
    place = place + speed
    return [place, speed], 1.0 - abs(place), abs(place) > 1.5 or not math.isfinite(place)


def train(episodes=16, longest=20):
    torch.manual_seed(2)
    chance = random.Random(2)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for episode in range(episodes):
        state, rewards = [chance.uniform(-0.5, 0.5), 0.0], []
        for _ in range(longest):
            action = choose(policy, state)
            state, reward, done = move(state, action, chance)
            rewards.append(reward)
            if done:
                break
        returns, value = [], 0.0
        for reward in reversed(rewards):
            value = reward + 0.95 * value
            returns.insert(0, value)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        losses = [-logp * gain for logp, gain in zip(policy.saved, returns, strict=True)]
        optimizer.zero_grad()
        loss = torch.cat(losses).sum()
        loss.backward()
        optimizer.step()
        policy.saved = []
        print(f"{episode} {sum(rewards):.6f}", flush=True)


if __name__ == "__main__":
    train()

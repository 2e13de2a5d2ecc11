"""REINFORCE on a cart-pole in numpy: log-probs and rewards in lists of the module, one episode for each update."""

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

GAMMA = 0.99


class Pole:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.state = self.random.uniform(-0.05, 0.05, 4)
        self.steps = 0
        return self.state.copy()

    def step(self, action):
        _x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        turn = (9.8 * np.sin(angle) - np.cos(angle) * (force + 0.05 * spin**2 * np.sin(angle)) / 1.1) / (
            0.5 * (4.0 / 3.0 - 0.1 * np.cos(angle) ** 2 / 1.1)
        )
        push = (force + 0.05 * (spin**2 * np.sin(angle) - turn * np.cos(angle))) / 1.1
        self.state = self.state + 0.02 * np.array([v, push, spin, turn])
        self.steps += 1
        done = bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21 or self.steps >= 60)
        return self.state.copy(), 1.0 - 2.0 * abs(float(self.state[2])), done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 32)
        self.affine2 = nn.Linear(32, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.affine1(x))), dim=1)


torch.manual_seed(1)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
eps = np.finfo(np.float32).eps.item()


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0)
    m = Categorical(policy(state))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R = 0
    policy_loss = []
    returns = []
    for r in policy.rewards[::-1]:
        R = r + GAMMA * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns, strict=False):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    loss = torch.cat(policy_loss).sum()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


env = Pole(3)
running = 10
for _episode in range(20):
    state, ep_reward = env.reset(), 0
    for _t in range(1, 100):
        action = select_action(state)
        state, reward, done = env.step(action)
        policy.rewards.append(reward)
        ep_reward += reward
        if done:
            break
    running = 0.05 * ep_reward + 0.95 * running
    finish_episode()
print(running)

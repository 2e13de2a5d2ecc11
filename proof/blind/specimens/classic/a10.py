import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

np.random.seed(543)
torch.manual_seed(543)


class Corridor:
    """Start somewhere in a corridor of 9 cells. A key lies at one end, the door is at the other."""

    def reset(self, start=None):
        self.pos = np.random.randint(2, 7) if start is None else start
        self.key = False
        self.t = 0
        return self._obs()

    def _obs(self):
        o = np.zeros(11, dtype=np.float32)
        o[self.pos] = 1
        o[9] = float(self.key)
        o[10] = self.t / 30
        return o

    def step(self, a):
        self.pos = min(8, max(0, self.pos + (1 if a == 1 else -1)))
        self.t += 1
        r = -0.01
        if self.pos == 0 and not self.key:
            self.key = True
            r += 0.5
        done = self.t >= 30
        if self.pos == 8 and self.key:
            r += 1.0
            done = True
        return self._obs(), r, done


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(11, 64)
        self.affine2 = nn.Linear(64, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=-1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
env = Corridor()
EPISODES = 8


def select_action(state):
    probs = policy(torch.from_numpy(state))
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def run_episode(start):
    state = env.reset(start)
    done = False
    while not done:
        action = select_action(state)
        state, reward, done = env.step(action)
        policy.rewards.append(reward)
    out = policy.saved_log_probs, sum(policy.rewards)
    policy.saved_log_probs, policy.rewards = [], []
    return out


def finish_group(group):
    scores = np.array([score for _, score in group])
    adv = (scores - scores.mean()) / (scores.std() + 1e-6)
    policy_loss = []
    for (log_probs, _), a in zip(group, adv):
        for log_prob in log_probs:
            policy_loss.append(-log_prob * float(a) / len(log_probs))
    optimizer.zero_grad()
    loss = torch.tensor(policy_loss, requires_grad=True).sum() / len(group)
    loss.backward()
    optimizer.step()
    return loss.item(), scores.mean()


def main():
    running = None
    for i in range(25):
        start = np.random.randint(2, 7)
        group = [run_episode(start) for _ in range(EPISODES)]
        loss, score = finish_group(group)
        running = score if running is None else 0.9 * running + 0.1 * score
        if (i + 1) % 5 == 0:
            print("Group {}\tLast score: {:.2f}\tAverage score: {:.2f}".format(i + 1, score, running))


if __name__ == "__main__":
    main()

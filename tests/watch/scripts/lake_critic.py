"""Actor and critic on a slippery lake: transitions as named tuples, several episodes for each update."""

import random
from collections import namedtuple

import torch
import torch.nn as nn

Transition = namedtuple("Transition", "state action log_prob value reward done")


class Frozen:
    """A slippery lake of 4 x 4 with two holes."""

    HOLES = frozenset({5, 11})

    def reset(self):
        self.cell, self.n = 0, 0
        return self.cell

    def step(self, action):
        if random.random() < 0.1:
            action = random.randrange(4)
        r, c = divmod(self.cell, 4)
        r, c = [(r, max(c - 1, 0)), (min(r + 1, 3), c), (r, min(c + 1, 3)), (max(r - 1, 0), c)][action]
        self.cell = 4 * r + c
        self.n += 1
        reward = 1.0 if self.cell == 15 else -0.5 if self.cell in self.HOLES else 0.05 * (r + c) - 0.2
        return self.cell, reward, self.cell == 15 or self.cell in self.HOLES or self.n >= 12, {}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Embedding(16, 24)
        self.pi, self.v = nn.Linear(24, 4), nn.Linear(24, 1)

    def forward(self, s):
        h = torch.tanh(self.body(s))
        return torch.log_softmax(self.pi(h), -1), self.v(h).squeeze(-1)


def main():
    random.seed(5)
    torch.manual_seed(5)
    model, env = Model(), Frozen()
    opt = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    for _update in range(15):
        memory = []
        for _ in range(6):
            s, done = env.reset(), False
            while not done:
                st = torch.tensor([s])
                logp, v = model(st)
                a = torch.multinomial(logp.exp().detach(), 1)
                s2, r, done, _ = env.step(int(a))
                memory.append(Transition(s, int(a), logp.gather(1, a).squeeze(), v.squeeze(), r, done))
                s = s2
        returns, running = [], 0.0
        for t in reversed(memory):
            running = t.reward + 0.95 * running * (0.0 if t.done else 1.0)
            returns.append(running)
        returns = torch.tensor(returns[::-1])
        logps = torch.stack([t.log_prob for t in memory])
        values = torch.stack([t.value for t in memory])
        adv = returns - values.detach()
        loss = -(logps * adv).mean() + 0.5 * (values - returns).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(sum(t.reward for t in memory))


main()

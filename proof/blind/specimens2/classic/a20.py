import random
from dataclasses import dataclass, field
from typing import List
import torch
from torch import nn


@dataclass
class Step:
    obs: torch.Tensor
    action: int
    logp: float


@dataclass
class Episode:
    steps: List[Step] = field(default_factory=list)
    score: float = 0.0


class Warehouse:
    """4x4 floor with shelves; a move into a shelf or wall is carried out as WAIT"""
    WAIT, N, E, S, W = range(5)
    DELTA = {0: (0, 0), 1: (0, -1), 2: (1, 0), 3: (0, 1), 4: (-1, 0)}

    def __init__(self):
        cells = [(x, y) for x in range(4) for y in range(4)]
        random.shuffle(cells)
        self.robot0, self.box = cells[0], cells[1]
        self.shelves = set(cells[2:5])

    def reset(self):
        self.robot = self.robot0
        return self.obs()

    def obs(self):
        o = torch.zeros(16 * 2 + 5)
        o[self.robot[0] * 4 + self.robot[1]] = 1
        o[16 + self.box[0] * 4 + self.box[1]] = 1
        for a in range(5):
            o[32 + a] = float(self.executed(a) == a)
        return o

    def executed(self, a):
        x, y = self.robot[0] + self.DELTA[a][0], self.robot[1] + self.DELTA[a][1]
        return a if 0 <= x < 4 and 0 <= y < 4 and (x, y) not in self.shelves else self.WAIT

    def step(self, a):
        done_action = self.executed(a)
        before = self.dist()
        self.robot = (self.robot[0] + self.DELTA[done_action][0], self.robot[1] + self.DELTA[done_action][1])
        reward = 0.2 * (before - self.dist()) + (1.0 if self.robot == self.box else 0.0) - 0.1 * (done_action == self.WAIT and self.robot != self.box)
        return self.obs(), reward, done_action

    def dist(self):
        return abs(self.robot[0] - self.box[0]) + abs(self.robot[1] - self.box[1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(37, 48)
        self.b = nn.Linear(48, 5)

    def forward(self, o):
        return torch.log_softmax(self.b(torch.relu(self.a(o))), -1)


def play(net: Net, env: Warehouse, limit: int = 6) -> Episode:
    ep, obs = Episode(), env.reset()
    for _ in range(limit):
        with torch.no_grad():
            lp = net(obs)
        action = int(torch.multinomial(lp.exp(), 1))
        nxt, reward, executed = env.step(action)
        ep.steps.append(Step(obs, executed, lp[action].item()))
        ep.score += reward
        obs = nxt
    return ep


def main():
    random.seed(9)
    torch.manual_seed(9)
    torch.set_num_threads(1)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=6e-3)
    for rnd in range(45):
        steps, adv, scores = [], [], []
        for _ in range(4):
            env = Warehouse()
            eps = [play(net, env) for _ in range(8)]
            s = torch.tensor([e.score for e in eps])
            scores.append(s.mean().item())
            for e, a in zip(eps, ((s - s.mean()) / (s.std() + 1e-6)).tolist()):
                steps += e.steps
                adv += [a] * len(e.steps)
        obs = torch.stack([s.obs for s in steps])
        act = torch.tensor([s.action for s in steps])
        old = torch.tensor([s.logp for s in steps])
        A = torch.tensor(adv)
        for _ in range(2):
            ratio = (net(obs).gather(1, act[:, None])[:, 0] - old).exp()
            loss = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rnd % 9 == 8:
            print(rnd + 1, "score", round(sum(scores) / 4, 3))


main()

"""GRPO in a maze, two lessons: first open rooms, then rooms with a wall.

Lesson two starts from the best weights seen in lesson one.
"""
import copy
import random

import torch
import torch.nn.functional as F
from torch import nn

SIZE = 4
DIRS = [(-1, 0), (1, 0), (0, -1), (0, 1)]


class Room:
    def __init__(self, walls, rnd):
        cells = [(i, j) for i in range(SIZE) for j in range(SIZE)]
        self.walls = {(2, j) for j in range(SIZE) if j != walls} if walls is not None else set()
        free = [c for c in cells if c not in self.walls]
        self.start, self.exit = rnd.sample(free, 2)

    def play(self, net, copies, limit=9):
        """Run `copies` walks from the same start; returns states, actions, mask, returns."""
        where = [self.start] * copies
        live = [True] * copies
        score = torch.zeros(copies)
        S, A, M = [], [], []
        for t in range(limit):
            s = torch.stack([self.view(w) for w in where])
            with torch.no_grad():
                a = torch.distributions.Categorical(logits=net(s)).sample()
            S.append(s)
            A.append(a)
            M.append(torch.tensor(live, dtype=torch.float))
            for k in range(copies):
                if not live[k]:
                    continue
                di, dj = DIRS[a[k]]
                c = (where[k][0] + di, where[k][1] + dj)
                if 0 <= c[0] < SIZE and 0 <= c[1] < SIZE and c not in self.walls:
                    where[k] = c
                if where[k] == self.exit:
                    live[k] = False
                    score[k] = 1.0 - 0.04 * t
            if not any(live):
                break
        for k in range(copies):
            if live[k]:
                score[k] = -0.1 * (abs(where[k][0] - self.exit[0]) + abs(where[k][1] - self.exit[1]))
        return torch.stack(S, 1), torch.stack(A, 1), torch.stack(M, 1), score

    def view(self, w):
        x = torch.zeros(3, SIZE, SIZE)
        x[0][w] = 1
        x[1][self.exit] = 1
        for c in self.walls:
            x[2][c] = 1
        gap = torch.tensor([self.exit[0] - w[0], self.exit[1] - w[1]]) / (SIZE - 1)
        return torch.cat([x.flatten(), gap])


class Learner:
    def __init__(self, lr):
        self.net = nn.Sequential(nn.Linear(3 * SIZE * SIZE + 2, 64), nn.ReLU(), nn.Linear(64, len(DIRS)))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.best, self.best_score = None, float("-inf")

    def remember(self, score):
        if score > self.best_score:
            self.best_score = score
            self.best = copy.deepcopy(self.net)

    def back_to_best(self):
        self.net = copy.deepcopy(self.best)

    def update(self, rollouts, epochs=2, clip=0.2):
        old = []
        with torch.no_grad():
            for s, a, m, adv in rollouts:
                old.append(self.logp(s, a))
        for _ in range(epochs):
            loss, n = 0.0, 0.0
            for (s, a, m, adv), lp0 in zip(rollouts, old):
                r = (self.logp(s, a) - lp0).exp()
                adv = adv[:, None]
                gain = torch.min(r * adv, r.clamp(1 - clip, 1 + clip) * adv)
                loss = loss - (gain * m).sum()
                n = n + m.sum()
            self.opt.zero_grad()
            (loss / n).backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()

    def logp(self, s, a):
        return F.log_softmax(self.net(s), -1).gather(-1, a[..., None])[..., 0]


def main():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    rnd = random.Random(5)
    learner = Learner(lr=8e-3)
    first, second, rooms, copies = 24, 18, 6, 10
    recent = []
    for it in range(first + second):
        if it == first:
            print("lesson two, best of lesson one was", round(learner.best_score, 3))
            learner.back_to_best()
            recent.clear()
        rollouts, scores = [], []
        for _ in range(rooms):
            room = Room(None if it < first else rnd.randrange(SIZE), rnd)
            s, a, m, score = room.play(learner.net, copies)
            adv = (score - score.mean()) / (score.std() + 1e-3)
            rollouts.append((s, a, m, adv))
            scores.append(score.mean().item())
        learner.update(rollouts)
        recent.append(sum(scores) / rooms)
        mean = sum(recent[-5:]) / len(recent[-5:])
        if len(recent) >= 5 and it < first:
            learner.remember(mean)
        if it % 5 == 4:
            print(f"{it + 1:3d} score {mean:.3f}")


if __name__ == "__main__":
    main()

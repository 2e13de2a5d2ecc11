"""A code is guessed symbol by symbol: a class that trains, groups of games with one code, a deque of scores."""

from collections import deque

import numpy as np
import torch
from torch import nn, optim
from torch.distributions import Categorical


class CodeGame:
    def __init__(self, rng, symbols=5, places=4):
        self.rng, self.symbols, self.places = rng, symbols, places

    def reset(self, code):
        self.code, self.guess = code, []
        return self._state()

    def _state(self):
        state = np.zeros((2 * self.places, self.symbols + 1), dtype=np.float32)
        for i, s in enumerate(self.code):
            state[i, s] = 1
        for i in range(self.places):
            state[self.places + i, self.guess[i] if i < len(self.guess) else self.symbols] = 1
        return state.reshape(-1)

    def step(self, symbol):
        self.guess.append(symbol)
        right = symbol == self.code[len(self.guess) - 1]
        return self._state(), 1.0 if right else -0.1, len(self.guess) == self.places


class Trainer:
    def __init__(self):
        self.rng = np.random.default_rng(11)
        self.game = CodeGame(self.rng)
        self.net = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 5))
        self.opt = optim.AdamW(self.net.parameters(), lr=2e-3)
        self.recent = deque(maxlen=50)

    def rollout(self, code):
        obs, acts, logps, total, state, done = [], [], [], 0.0, self.game.reset(code), False
        while not done:
            x = torch.from_numpy(state)
            with torch.no_grad():
                d = Categorical(logits=self.net(x))
                a = d.sample()
            obs.append(x)
            acts.append(a)
            logps.append(d.log_prob(a))
            state, r, done = self.game.step(a.item())
            total += r
        self.recent.append(total)
        return torch.stack(obs), torch.stack(acts), torch.stack(logps), total

    def iteration(self, codes=4, group=6, epochs=2):
        states, actions, old, weights = [], [], [], []
        for _ in range(codes):
            code = self.rng.integers(0, 5, 4).tolist()
            runs = [self.rollout(code) for _ in range(group)]
            score = np.array([r[3] for r in runs])
            adv = (score - score.mean()) / (score.std() + 1e-4)
            for (seen, taken, logps, _), weight in zip(runs, adv, strict=True):
                states.append(seen)
                actions.append(taken)
                old.append(logps)
                weights.append(torch.full((len(taken),), float(weight)))
        states, actions, old, weights = map(torch.cat, (states, actions, old, weights))
        for _ in range(epochs):
            for rows in torch.randperm(len(actions)).chunk(2):
                new = Categorical(logits=self.net(states[rows])).log_prob(actions[rows])
                ratio = torch.exp(new - old[rows])
                loss = -torch.min(ratio * weights[rows], ratio.clamp(0.8, 1.2) * weights[rows]).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
        return float(np.mean(self.recent))


trainer = Trainer()
for i in range(8):
    print(i, trainer.iteration())

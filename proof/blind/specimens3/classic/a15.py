"""Recurrent PPO on a little memory task.

A cue (one of three) flashes at the first step of an episode, then the screen is blank for a
few steps, then a question mark appears and the agent has to press the button of the cue.
Many copies of the task run side by side and restart on their own.
"""
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
torch.set_num_threads(1)


class CueRecall:
    """N copies; observation = [cue one-hot (3), blank, question]."""

    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.cue = np.zeros(n, int)
        self.t = np.zeros(n, int)
        self.delay = np.zeros(n, int)
        for i in range(n):
            self._restart(i)

    def _restart(self, i):
        self.cue[i] = self.rng.integers(3)
        self.delay[i] = self.rng.integers(1, 4)
        self.t[i] = 0

    def observe(self):
        o = np.zeros((self.n, 5), np.float32)
        for i in range(self.n):
            if self.t[i] == 0:
                o[i, self.cue[i]] = 1
            elif self.t[i] <= self.delay[i]:
                o[i, 3] = 1
            else:
                o[i, 4] = 1
        return torch.from_numpy(o)

    def step(self, act):
        r = np.zeros(self.n, np.float32)
        d = np.zeros(self.n, np.float32)
        for i in range(self.n):
            if self.t[i] > self.delay[i]:
                r[i] = 1.0 if act[i] == self.cue[i] else -0.2
                d[i] = 1
                self._restart(i)
            else:
                self.t[i] += 1
        return self.observe(), torch.from_numpy(r), torch.from_numpy(d)


class Agent(nn.Module):
    def __init__(self, hid=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(5, hid), nn.Tanh())
        self.rnn = nn.GRU(hid, hid)
        self.pi = nn.Linear(hid, 3)
        self.v = nn.Linear(hid, 1)
        self.hid = hid

    def step(self, o, h):
        y, h = self.rnn(self.enc(o)[None], h)
        return Categorical(logits=self.pi(y[0])), self.v(y[0]).squeeze(-1), h

    def unroll(self, obs, h0):
        y, _ = self.rnn(self.enc(obs), h0)
        return Categorical(logits=self.pi(y)), self.v(y).squeeze(-1)


N, T, ITERS = 24, 20, 40
GAMMA, LAM, CLIP = 0.95, 0.9, 0.2
env = CueRecall(N, 0)
agent = Agent()
opt = torch.optim.Adam(agent.parameters(), lr=3e-3)
o = env.observe()
h = torch.zeros(1, N, agent.hid)

for it in range(ITERS):
    h_start = h.clone()
    O, A, LP, V, R, D = [], [], [], [], [], []
    with torch.no_grad():
        for _ in range(T):
            dist, v, h = agent.step(o, h)
            a = dist.sample()
            O.append(o); A.append(a); LP.append(dist.log_prob(a)); V.append(v)
            o, r, d = env.step(a.numpy())
            h = h * (1 - d)[None, :, None]
            R.append(r); D.append(d)
        _, last_v, _ = agent.step(o, h)
    O, A, LP, V, R, D = map(torch.stack, (O, A, LP, V, R, D))

    adv = torch.zeros_like(R)
    acc = torch.zeros(N)
    for t in reversed(range(T)):
        nv = last_v if t == T - 1 else V[t + 1]
        delta = R[t] + GAMMA * nv * (1 - D[t]) - V[t]
        acc = delta + GAMMA * LAM * (1 - D[t]) * acc
        adv[t] = acc
    ret = adv + V
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)

    for _ in range(3):
        # whole environments per minibatch, so that sequences stay in one piece
        for cols in torch.randperm(N).split(N // 2):
            dist, v = agent.unroll(O[:, cols], h_start[:, cols])
            ratio = (dist.log_prob(A[:, cols]) - LP[:, cols]).exp()
            a_ = adv[:, cols]
            pg = -torch.min(ratio * a_, ratio.clamp(1 - CLIP, 1 + CLIP) * a_).mean()
            vl = (v - ret[:, cols]).pow(2).mean()
            loss = pg + 0.5 * vl - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
    if it % 10 == 9:
        print(f"iter {it + 1:3d}  reward per episode {R.sum() / D.sum():.3f}")

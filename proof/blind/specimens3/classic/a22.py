# catch the falling fruit: 40 screens at once, an acting network and a learning network
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(21)
np.random.seed(21)

W, H = 7, 6
N_SCREENS = 40


class Fruit:
    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.fx = np.random.randint(0, W, self.n)
        self.wind = np.random.randint(-1, 2, self.n)
        self.px = np.full(self.n, W // 2)
        self.y = 0

    def frame(self):
        f = np.stack([self.fx / W, self.wind, self.px / W, np.full(self.n, self.y / H), (self.fx - self.px) / W], 1)
        return torch.tensor(f, dtype=torch.float32)

    def step(self, a):
        self.px = np.clip(self.px + a - 1, 0, W - 1)
        if self.y % 2 == 0:
            self.fx = (self.fx + self.wind) % W
        self.y += 1
        end = self.y == H
        r = (np.abs(self.fx - self.px) == 0).astype(np.float32) if end else np.zeros(self.n, np.float32)
        return torch.tensor(r), end


class LearnerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 3)
        self.value = nn.Linear(64, 1)

    def forward(self, x):
        z = self.trunk(x)
        return self.pi(z), self.value(z).squeeze(-1)


class ActorNet(nn.Module):
    """The same without the value, for playing."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 3)

    @torch.no_grad()
    def act(self, x):
        return Categorical(logits=self.head(self.trunk(x))).sample()


learner = LearnerNet()
actor = ActorNet()
opt = torch.optim.Adam(learner.parameters(), lr=2.5e-3)
screens = Fruit(N_SCREENS)
GAMMA, LAM = 0.99, 0.95


def push_weights():
    # the learner has a value head that the actor does not have
    actor.load_state_dict(learner.state_dict(), strict=False)


def collect():
    screens.reset()
    X, A, R = [], [], []
    end = False
    while not end:
        x = screens.frame()
        a = actor.act(x)
        r, end = screens.step(a.numpy())
        X.append(x), A.append(a), R.append(r)
    return torch.stack(X), torch.stack(A), torch.stack(R)


for it in range(1, 76):
    push_weights()
    X, A, R = collect()
    with torch.no_grad():
        logits, V = learner(X)
        logp_old = Categorical(logits=logits).log_prob(A)
    T = len(R)
    adv = torch.zeros_like(R)
    last = torch.zeros(N_SCREENS)
    for t in range(T - 1, -1, -1):
        nxt = V[t + 1] if t + 1 < T else torch.zeros(N_SCREENS)
        last = R[t] + GAMMA * nxt - V[t] + GAMMA * LAM * last
        adv[t] = last
    target = adv + V
    flat = lambda z: z.reshape(T * N_SCREENS, *z.shape[2:])
    x, a, lp, ad, tg = map(flat, (X, A, logp_old, adv, target))
    ad = (ad - ad.mean()) / (ad.std() + 1e-6)
    for _ in range(3):
        for mb in torch.randperm(len(x)).chunk(3):
            logits, v = learner(x[mb])
            d = Categorical(logits=logits)
            ratio = (d.log_prob(a[mb]) - lp[mb]).exp()
            pg = torch.min(ratio * ad[mb], ratio.clamp(0.8, 1.2) * ad[mb]).mean()
            loss = -pg + 0.5 * (v - tg[mb]).pow(2).mean() - 0.005 * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    if it % 15 == 0:
        print("it", it, "caught %.2f" % R[-1].mean().item())

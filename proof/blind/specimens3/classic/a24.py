import numpy as np, torch, math, time
from torch import nn
from torch.distributions import Categorical
torch.set_num_threads(1)


class Poles:
    """A batch of cart-poles in numpy (the usual constants), each restarts by itself."""
    def __init__(self, n, seed=0, limit=120):
        self.n, self.limit, self.rng = n, limit, np.random.default_rng(seed)
        self.s = self.rng.uniform(-.05, .05, (n, 4)); self.age = np.zeros(n, int)

    def step(self, a):
        x, xd, th, thd = self.s.T
        f = np.where(a == 1, 10., -10.)
        c, s = np.cos(th), np.sin(th)
        tmp = (f + .05 * thd ** 2 * s) / 1.1
        tha = (9.8 * s - c * tmp) / (.5 * (4 / 3 - .1 * c ** 2 / 1.1))
        xa = tmp - .05 * tha * c / 1.1
        self.s = np.stack([x + .02 * xd, xd + .02 * xa, th + .02 * thd, thd + .02 * tha], 1)
        self.age += 1
        fell = (np.abs(self.s[:, 0]) > 2.4) | (np.abs(self.s[:, 2]) > 12 * math.pi / 180)
        timeout = (self.age >= self.limit) & ~fell
        final = self.s.copy()
        ages = self.age[fell | timeout].tolist()
        for i in np.flatnonzero(fell | timeout):
            self.s[i] = self.rng.uniform(-.05, .05, 4); self.age[i] = 0
        return final, fell, timeout, ages


class Config:
    n_envs = 16
    n_steps = 64
    n_iters = 12
    n_epochs = 6
    mb = 256
    lr = 3e-3
    gamma = .99
    lam = .95
    clip = .15
    vf = .5


def t32(z): return torch.as_tensor(z, dtype=torch.float32)


class PPO:
    def __init__(self, cfg):
        self.c = cfg
        self.pi = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.vf = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.opt = torch.optim.Adam([*self.pi.parameters(), *self.vf.parameters()], lr=cfg.lr)
        self.env = Poles(cfg.n_envs, seed=4)

    @torch.no_grad()
    def rollout(self):
        c = self.c
        b = {k: [] for k in "obs act lp val rew end".split()}
        ages = []
        for _ in range(c.n_steps):
            o = t32(self.env.s)
            d = Categorical(logits=self.pi(o)); a = d.sample()
            final, fell, timeout, ag = self.env.step(a.numpy())
            ages += ag
            r = torch.ones(c.n_envs) * .1
            r = r + c.gamma * self.vf(t32(final)).squeeze(-1) * t32(timeout)     # time limit is not a fall
            for k, v in zip(b, (o, a, d.log_prob(a), self.vf(o).squeeze(-1), r, t32(fell | timeout))):
                b[k].append(v)
        b = {k: torch.stack(v) for k, v in b.items()}
        nxt = self.vf(t32(self.env.s)).squeeze(-1)
        adv, g = torch.zeros_like(b["rew"]), 0.
        for t in reversed(range(c.n_steps)):
            keep = 1 - b["end"][t]
            g = b["rew"][t] + c.gamma * keep * nxt - b["val"][t] + c.gamma * c.lam * keep * g
            adv[t] = g; nxt = b["val"][t]
        b["adv"], b["ret"] = adv, adv + b["val"]
        return {k: v.flatten(0, 1) for k, v in b.items()}, ages

    def policy_loss(self, logp, old_logp, adv):
        ratio = torch.exp(logp - old_logp)
        unclipped = -adv * ratio
        clipped = -adv * torch.clamp(ratio, 1 - self.c.clip, 1 + self.c.clip)
        return torch.min(unclipped, clipped).mean()

    def update(self, b):
        n = len(b["adv"]); adv = (b["adv"] - b["adv"].mean()) / (b["adv"].std() + 1e-8)
        for _ in range(self.c.n_epochs):
            for i in torch.randperm(n).split(self.c.mb):
                d = Categorical(logits=self.pi(b["obs"][i]))
                loss = self.policy_loss(d.log_prob(b["act"][i]), b["lp"][i], adv[i])
                loss = loss + self.c.vf * (self.vf(b["obs"][i]).squeeze(-1) - b["ret"][i]).pow(2).mean()
                self.opt.zero_grad(); loss.backward()
                nn.utils.clip_grad_norm_([*self.pi.parameters(), *self.vf.parameters()], 1.)
                self.opt.step()
        with torch.no_grad():
            lp = Categorical(logits=self.pi(b["obs"])).log_prob(b["act"])
            return (b["lp"] - lp).mean().item()


if __name__ == "__main__":
    torch.manual_seed(4)
    algo, t0 = PPO(Config()), time.time()
    for k in range(Config.n_iters):
        batch, ages = algo.rollout()
        kl = algo.update(batch)
        if k % 3 == 2:
            print(f"iter {k+1:2d} balanced for {np.mean(ages) if ages else float('nan'):6.1f} moves, kl {kl:.4f}, {time.time()-t0:.1f}s")

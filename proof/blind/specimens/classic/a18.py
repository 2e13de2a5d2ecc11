import torch
from torch import nn, optim
import torch.nn.functional as F


class MLPPolicy(nn.Module):
    def __init__(self, n_in, n_out, widths=(48, 48)):
        super().__init__()
        self.layers = []
        last = n_in
        for w in widths:
            self.layers.append(nn.Linear(last, w))
            last = w
        self.head = nn.Linear(last, n_out)

    def forward(self, x):
        for layer in self.layers:
            x = F.elu(layer(x))
        return F.log_softmax(self.head(x), dim=-1)


class ThermostatBatch:
    """Heat, cool or wait, so that the room's temperature follows a wish that changes once in an episode."""

    def __init__(self, rooms, copies, length=20):
        self.rooms, self.copies, self.length = rooms, copies, length

    def reset(self):
        rep = lambda v: v.repeat_interleave(self.copies)
        self.temp = rep(torch.empty(self.rooms).uniform_(-2, 2))
        self.wish1 = rep(torch.empty(self.rooms).uniform_(-1.5, 1.5))
        self.wish2 = rep(torch.empty(self.rooms).uniform_(-1.5, 1.5))
        self.leak = rep(torch.empty(self.rooms).uniform_(0.02, 0.15))
        self.t = 0
        return self.state()

    def wish(self):
        return self.wish1 if self.t < self.length // 2 else self.wish2

    def state(self):
        left = torch.full_like(self.temp, 1 - self.t / self.length)
        return torch.stack([self.temp, self.wish(), self.leak * 5, left], 1)

    def step(self, a):
        self.temp = self.temp * (1 - self.leak) + (a.float() - 1) * 0.35
        r = -(self.temp - self.wish()).abs() - 0.02 * (a != 1).float()
        self.t += 1
        return self.state(), r


class GroupPG:
    def __init__(self, env, lr=5e-3, clip=0.2, epochs=3):
        self.env = env
        self.policy = MLPPolicy(4, 3)
        self.optim = optim.Adam(self.policy.parameters(), lr=lr)
        self.clip, self.epochs = clip, epochs

    def gather(self):
        obs, act, logp, rew = [], [], [], []
        s = self.env.reset()
        with torch.no_grad():
            for _ in range(self.env.length):
                lp = self.policy(s)
                a = torch.multinomial(lp.exp(), 1)
                obs.append(s), act.append(a), logp.append(lp.gather(1, a))
                s, r = self.env.step(a.squeeze(1))
                rew.append(r)
        return torch.stack(obs), torch.stack(act), torch.stack(logp), torch.stack(rew)

    def advantage(self, rew):
        # what is still to come, against the other copies of the same room at the same time
        togo = rew.flip(0).cumsum(0).flip(0)
        g = togo.view(len(togo), self.env.rooms, self.env.copies)
        return ((g - g.mean(2, keepdim=True)) / (g.std(2, keepdim=True) + 1e-6)).view(len(togo), -1, 1)

    def step(self):
        obs, act, old, rew = self.gather()
        adv = self.advantage(rew)
        for _ in range(self.epochs):
            ratio = (self.policy(obs).gather(2, act) - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(1 - self.clip, 1 + self.clip) * adv).mean()
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
        return rew.sum(0).mean().item()


if __name__ == "__main__":
    torch.manual_seed(31)
    algo = GroupPG(ThermostatBatch(rooms=6, copies=8))
    for i in range(60):
        ret = algo.step()
        if i % 10 == 9:
            print(f"{i + 1}\t{ret:.3f}")

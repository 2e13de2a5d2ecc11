import copy
import torch
from torch import nn, optim

torch.manual_seed(23)
torch.set_num_threads(1)


class TrafficLight:
    """two queues; action = which one gets green for this tick (0, 1) or both yellow (2)"""

    def __init__(self, rates, n):
        self.rates = rates
        self.q = torch.zeros(n, 2)

    def tick(self, a):
        self.q = self.q + torch.poisson(self.rates.expand_as(self.q))
        served = torch.stack([(a == 0), (a == 1)], 1).float() * 3
        self.q = (self.q - served).clamp(min=0)
        return -self.q.sum(1)

    def obs(self):
        return torch.cat([self.q / 5, self.rates.expand_as(self.q)], 1)


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 32)
        self.out = nn.Linear(32, 3)

    def forward(self, o):
        return torch.log_softmax(self.out(torch.relu(self.inp(o))), dim=-1)


class Session:
    def __init__(self, kl_weight=0.1):
        self.model = Controller()
        self.anchor = copy.copy(self.model)
        self.kl_weight = kl_weight
        self.opt = optim.Adam(self.model.parameters(), lr=5e-3)

    def collect(self, group=10, ticks=8):
        rates = torch.rand(1, 2) * 2
        env = TrafficLight(rates, group)
        obs, act, logp, total = [], [], [], 0
        with torch.no_grad():
            for _ in range(ticks):
                o = env.obs()
                lp = self.model(o)
                a = torch.multinomial(lp.exp(), 1)
                obs.append(o)
                act.append(a)
                logp.append(lp.gather(1, a))
                total = total + env.tick(a.squeeze(1))
        adv = (total - total.mean()) / (total.std() + 1e-6)
        return torch.stack(obs), torch.stack(act), torch.stack(logp), adv.view(1, -1, 1).expand(ticks, -1, 1), total.mean().item()

    def improve(self, batches, epochs=2):
        obs, act, old, adv = (torch.cat([b[i] for b in batches], 1) for i in range(4))
        for _ in range(epochs):
            lp_all = self.model(obs)
            with torch.no_grad():
                anchor_all = self.anchor(obs)
            ratio = (lp_all.gather(2, act) - old).exp()
            gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            kl = (lp_all.exp() * (lp_all - anchor_all)).sum(-1).mean()       # exact, over the three actions
            self.opt.zero_grad()
            (self.kl_weight * kl - gain).backward()
            self.opt.step()
        return kl.item()


s = Session()
for i in range(50):
    batches = [s.collect() for _ in range(4)]
    kl = s.improve(batches)
    if i % 10 == 9:
        print(f"{i + 1:3d} waiting {sum(b[4] for b in batches) / 4:.2f} kl {kl:.4f}")

"""Actors run behind the learner on purpose: a batch is generated with weights that are `LAG` updates old.
The learner knows the probability with which each action was drawn and corrects for it (decoupled PPO)."""
from collections import deque
import copy

import torch
import torch.nn as nn
from torch.distributions import Categorical

LAG = 3
LAMPS, GROUP, HORIZON = 10, 8, 6


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, s):
        return Categorical(logits=self.f(s))


def toggle(state, a):
    """4 lamps in a ring; a press flips a lamp and its right neighbour."""
    flip = nn.functional.one_hot(a, 4) + nn.functional.one_hot((a + 1) % 4, 4)
    return (state + flip) % 2


@torch.no_grad()
def act(actor):
    want = torch.randint(0, 2, (LAMPS, 4))
    have = want.clone()
    for _ in range(3):                      # scrambled by presses, so that each wish can be reached
        have = toggle(have, torch.randint(0, 4, (LAMPS,)))
    want, have = want.repeat_interleave(GROUP, 0), have.repeat_interleave(GROUP, 0)
    S, A, MU, total = [], [], [], torch.zeros(LAMPS * GROUP)
    for _ in range(HORIZON):
        s = torch.cat([have, want], 1).float() * 2 - 1
        d = actor(s)
        a = d.sample()
        S.append(s)
        A.append(a)
        MU.append(d.log_prob(a))
        have = toggle(have, a)
        total += (have == want).float().mean(1)
    return dict(s=torch.stack(S, 1), a=torch.stack(A, 1), mu=torch.stack(MU, 1), r=total)


class Learner:
    def __init__(self):
        self.net = Controller()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=4e-3)
        self.past = deque([copy.deepcopy(self.net)], maxlen=LAG + 1)

    def oldest(self):
        return self.past[0]

    def learn(self, b, passes=2):
        r = b["r"].view(LAMPS, GROUP)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            prox = self.net(b["s"]).log_prob(b["a"])
            weight = (prox - b["mu"]).exp().clamp(max=2.0)
        for _ in range(passes):
            rho = (self.net(b["s"]).log_prob(b["a"]) - prox).exp()
            loss = -(weight * torch.min(rho * adv, rho.clamp(0.8, 1.2) * adv)).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.past.append(copy.deepcopy(self.net))
        return loss.item(), weight.mean().item()


torch.manual_seed(12)
learner = Learner()
for i in range(120):
    batch = act(learner.oldest())
    loss, w = learner.learn(batch)
    if (i + 1) % 15 == 0:
        print(f"{i + 1:4d}  reward {batch['r'].mean().item() / HORIZON:.3f}  loss {loss:+.4f}  mean weight {w:.3f}")

"""Asynchronous by design: the actor's weights are up to three updates old. Its log-probs are stored with each sample and
the loss corrects with min(pi / mu, 2)."""
import collections
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(17)
V, P, A, GROUP = 12, 2, 4, 8

Sample = collections.namedtuple("Sample", "ids mu reward version")


def new_net():
    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(V, 24)
            s.r = nn.GRU(24, 48, batch_first=True)
            s.o = nn.Linear(48, V)

        def forward(s, x):
            return s.o(s.r(s.e(x))[0])
    return Net()


class Actor:
    LAG = 3

    def __init__(self, learner):
        self.net = new_net()
        self.version = 0
        self.refresh(learner, 0)

    def refresh(self, learner, version):
        self.net.load_state_dict(learner.state_dict())
        self.version = version

    @torch.no_grad()
    def produce(self):
        q = torch.randint(0, V, (1, P)).expand(GROUP, -1)
        ids, mu = q, []
        for _ in range(A):
            lp = F.log_softmax(self.net(ids)[:, -1], -1)
            t = torch.multinomial(lp.exp(), 1)
            mu.append(lp.gather(1, t))
            ids = torch.cat([ids, t], 1)
        total = (ids[:, P:].sum(1) - q.sum(1)).abs()
        return Sample(ids, torch.cat(mu, 1), 100.0 - total.float(), self.version)


learner = new_net()
actor = Actor(learner)
opt = torch.optim.Adam(learner.parameters(), lr=3e-3)
mailbox = collections.deque()

for version in range(1, 71):
    while len(mailbox) < 5:
        mailbox.append(actor.produce())
    jobs = [mailbox.popleft() for _ in range(5)]
    parts = []
    for s in jobs:
        adv = (s.reward - s.reward.mean()) / (s.reward.std() + 1e-4)
        lp = F.log_softmax(learner(s.ids[:, :-1])[:, P - 1:], -1).gather(2, s.ids[:, P:, None]).squeeze(2)
        w = (lp.detach() - s.mu).exp().clamp(max=2.0)
        parts.append(-(w * adv[:, None] * lp).mean())
    loss = torch.stack(parts).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
    opt.step()
    if version % Actor.LAG == 0:
        actor.refresh(learner, version)
    if version % 10 == 0:
        print(version, "reward", round(torch.cat([s.reward for s in jobs]).mean().item(), 2),
              "lag", version - min(s.version for s in jobs), "w", round(w.mean().item(), 3))

"""Actor and learner that are two updates apart on purpose.

The actor plays with a snapshot of the weights and keeps, with every token, the log-probability under which it was drawn.
The learner weighs each token with min(pi / mu, cap), held constant, as in truncated importance sampling.
"""
from __future__ import annotations

import copy
from collections import deque
from typing import NamedTuple

import torch
import torch.nn as nn
from torch.distributions import Categorical

STOP = 9
START = 10


class Trajectories(NamedTuple):
    version: int
    context: torch.Tensor      # (N, C)
    tokens: torch.Tensor       # (N, L)
    behaviour: torch.Tensor    # (N, L)  log mu(token)
    weight: torch.Tensor       # (N, L)  1 for tokens that were drawn
    score: torch.Tensor        # (N,)


class Speaker(nn.Module):
    def __init__(self, width: int = 72):
        super().__init__()
        self.lookup = nn.Embedding(11, width)
        self.cell = nn.GRU(width, width, num_layers=1, batch_first=True)
        self.say = nn.Linear(width, 10)

    def forward(self, seq: torch.Tensor, hidden=None):
        y, hidden = self.cell(self.lookup(seq), hidden)
        return self.say(y), hidden


class Actor:
    def __init__(self, template: Speaker, limit: int):
        self.net = copy.deepcopy(template).requires_grad_(False)
        self.version = 0
        self.limit = limit

    def refresh(self, state, version):
        self.net.load_state_dict(state)
        self.version = version

    @torch.no_grad()
    def play(self, n_context: int, per_context: int) -> Trajectories:
        context = torch.randint(0, 9, (n_context, 1)).repeat_interleave(per_context, 0)
        context = torch.cat([context, torch.full_like(context, START)], 1)
        logits, h = self.net(context)
        open_ = torch.ones(len(context))
        tokens, logmu, weight = [], [], []
        for _ in range(self.limit):
            d = Categorical(logits=logits[:, -1])
            t = torch.where(open_ > 0, d.sample(), torch.tensor(STOP))
            tokens.append(t)
            logmu.append(d.log_prob(t))
            weight.append(open_)
            open_ = open_ * (t != STOP).float()
            logits, h = self.net(t[:, None], h)
        tokens, logmu, weight = (torch.stack(v, 1) for v in (tokens, logmu, weight))
        step = torch.arange(1, self.limit + 1)
        wanted = (context[:, :1] + step) % 9                     # count upwards from the context
        wanted[:, -1] = STOP                                     # and then stop
        score = ((tokens == wanted).float() * weight).sum(1)
        return Trajectories(self.version, context, tokens, logmu, weight, score)


class Learner:
    def __init__(self, net: Speaker, per_context: int, lr: float, cap: float):
        self.net, self.per_context, self.cap = net, per_context, cap
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)

    def learn(self, tr: Trajectories):
        g = tr.score.view(-1, self.per_context)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
        seq = torch.cat([tr.context, tr.tokens[:, :-1]], 1)
        logits, _ = self.net(seq)
        logpi = Categorical(logits=logits[:, tr.context.shape[1] - 1:]).log_prob(tr.tokens)
        rho = (logpi.detach() - tr.behaviour).exp().clamp(max=self.cap)
        loss = -(rho * adv * logpi * tr.weight).sum() / tr.weight.sum()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 2.0)
        self.opt.step()
        return loss.item(), ((rho * tr.weight).sum() / tr.weight.sum()).item()


def main(updates: int = 80, lag: int = 2):
    torch.manual_seed(1234)
    learner = Learner(Speaker(), per_context=10, lr=5e-3, cap=2.0)
    actor = Actor(learner.net, limit=6)
    inbox: deque[Trajectories] = deque(actor.play(6, 10) for _ in range(lag))
    for u in range(updates):
        inbox.append(actor.play(6, 10))
        batch = inbox.popleft()
        loss, rho = learner.learn(batch)
        actor.refresh(learner.net.state_dict(), u + 1)
        if u % 8 == 0:
            print(f"update={u} behind={u - batch.version} score={batch.score.mean():.3f} rho={rho:.3f} loss={loss:.4f}")


if __name__ == "__main__":
    main()

"""Off-by-a-few GRPO.

The actor works with weights that are a few updates old and puts finished groups into a
queue; the learner takes them out in order. Every group carries the log-probs it was drawn
with. The learner clips against its own policy at the start of the update (proximal) and
weighs each token by min(proximal / behaviour, cap), as in decoupled PPO.
"""
from collections import deque
from typing import NamedTuple

import torch
import torch.nn as nn


class Group(NamedTuple):
    question: torch.Tensor
    tokens: torch.Tensor
    drawn_logp: torch.Tensor
    valid: torch.Tensor
    returns: torch.Tensor
    version: int


class Writer(nn.Module):
    def __init__(self, vocab=20, dim=48):
        super().__init__()
        self.lookup = nn.Embedding(vocab, dim)
        self.cells = nn.ModuleList([nn.GRUCell(dim, dim), nn.GRUCell(dim, dim)])
        self.proj = nn.Linear(dim, vocab)

    def begin(self, n):
        return [torch.zeros(n, self.lookup.embedding_dim) for _ in self.cells]

    def step(self, tok, state):
        x, nxt = self.lookup(tok), []
        for cell, s in zip(self.cells, state):
            x = cell(x, s)
            nxt.append(x)
        return self.proj(x), nxt

    def score(self, question, tokens):
        state, out = self.begin(len(question)), []
        for t in question[:, :-1].unbind(1):
            _, state = self.step(t, state)
        prev = question[:, -1]
        for t in tokens.unbind(1):
            logits, state = self.step(prev, state)
            out.append(logits.log_softmax(-1).gather(1, t[:, None])[:, 0])
            prev = t
        return torch.stack(out, 1)


class Actor:
    def __init__(self, vocab, size, limit):
        self.net, self.size, self.limit, self.version = Writer(vocab), size, limit, -1
        self.stop = vocab - 1

    def refresh(self, learner_net, version):
        self.net.load_state_dict(learner_net.state_dict())
        self.version = version

    @torch.no_grad()
    def group(self, question):
        q = question.expand(self.size, -1)
        state = self.net.begin(self.size)
        for t in q[:, :-1].unbind(1):
            _, state = self.net.step(t, state)
        prev, live = q[:, -1], torch.ones(self.size, dtype=torch.bool)
        tok, lp, ok = [], [], []
        for _ in range(self.limit):
            logits, state = self.net.step(prev, state)
            logs = logits.log_softmax(-1)
            prev = torch.multinomial(logs.exp(), 1)[:, 0]
            prev = torch.where(live, prev, self.stop)
            tok.append(prev)
            lp.append(logs.gather(1, prev[:, None])[:, 0])
            ok.append(live)
            live = live & (prev != self.stop)
        tok, lp, ok = torch.stack(tok, 1), torch.stack(lp, 1), torch.stack(ok, 1)
        text = ok & (tok != self.stop)
        hits = ((tok % 3 == 1) & text).sum(1)
        returns = (hits - 0.25 * text.sum(1)).float()
        return Group(q, tok, lp, ok.float(), returns, self.version)


def update(net, opt, groups, cap=2.0, eps=0.2, epochs=2):
    with torch.no_grad():
        prox = [net.score(g.question, g.tokens) for g in groups]
    total = sum(g.valid.sum() for g in groups)
    for _ in range(epochs):
        opt.zero_grad()
        for g, p in zip(groups, prox):
            if g.returns.max() == g.returns.min():
                continue
            adv = ((g.returns - g.returns.mean()) / (g.returns.std() + 1e-3))[:, None]
            weight = (p - g.drawn_logp).exp().clamp(max=cap)
            ratio = (net.score(g.question, g.tokens) - p).exp()
            gain = torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
            (-(weight * gain * g.valid).sum() / total).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()


def main():
    torch.manual_seed(6)
    net = Writer()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    actor, queue = Actor(20, size=8, limit=8), deque()
    per_update, lag = 4, 2
    for version in range(18):
        if version % 2 == 0:
            actor.refresh(net, version)
        while len(queue) < per_update * (lag + 1):
            queue.append(actor.group(torch.randint(0, 19, (1, 3))))
        groups = [queue.popleft() for _ in range(per_update)]
        update(net, opt, groups)
        if version % 5 == 4:
            age = sum(version - g.version for g in groups) / per_update
            print(f"v{version + 1:02d}  return {torch.cat([g.returns for g in groups]).mean():.3f}  age {age:.1f}")


if __name__ == "__main__":
    main()

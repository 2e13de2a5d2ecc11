"""Group-relative policy gradient over a fixed set of questions, visited in epochs."""
import random
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(1)
torch.manual_seed(1)

EOS, VOCAB = 10, 11
QUESTIONS = [(a, b) for a in range(10) for b in range(10) if (a * 7 + b) % 6 == 0]


class Policy(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, VOCAB))

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class Baselines:
    """Mean and spread of the rewards of a question's group."""

    def __init__(self):
        self.table = {}

    def __call__(self, question, rewards):
        if question not in self.table:
            self.table[question] = (rewards.mean(), rewards.std())
        return self.table[question]


def rollout(policy, q, n, limit):
    ids = torch.tensor([q] * n)
    done = torch.zeros(n, dtype=torch.bool)
    for _ in range(limit):
        with torch.no_grad():
            nxt = torch.multinomial(policy(ids)[:, -1].softmax(-1), 1).squeeze(-1)
        nxt[done] = EOS
        done |= nxt == EOS
        ids = torch.cat([ids, nxt.unsqueeze(-1)], -1)
    return ids


def grade(q, tokens):
    body = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
    want = abs(q[0] - q[1])
    if not body:
        return 0.0
    closeness = max(1 - abs(t - want) / 5 for t in body)
    return closeness + (0.5 if EOS in tokens else 0.0) - 0.1 * len(body)


policy = Policy()
optim = torch.optim.AdamW(policy.parameters(), lr=2e-3)
baseline = Baselines()
G, LIMIT, PER_STEP = 10, 6, 6
history = defaultdict(list)
step = 0

for epoch in range(14):
    random.shuffle(QUESTIONS)
    for lo in range(0, len(QUESTIONS) - PER_STEP + 1, PER_STEP):
        total, n_tok, seen = 0.0, 0, []
        for q in QUESTIONS[lo:lo + PER_STEP]:
            ids = rollout(policy, q, G, LIMIT)
            ans = ids[:, 2:]
            r = torch.tensor([grade(q, row) for row in ans.tolist()])
            mu, sd = baseline(q, r)
            adv = (r - mu) / (sd + 1e-4)
            is_eos = (ans == EOS).long()
            mask = ((is_eos.cumsum(1) - is_eos) == 0).float()
            lp = F.log_softmax(policy(ids[:, :-1]), -1)[:, 1:].gather(-1, ans.unsqueeze(-1)).squeeze(-1)
            total = total - (torch.exp(lp - lp.detach()) * adv.unsqueeze(-1) * mask).sum()
            n_tok += mask.sum()
            seen.append(r.mean().item())
            history[q].append(r.mean().item())
        loss = total / n_tok
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optim.step()
        step += 1
    print(f"epoch {epoch} step {step} reward {sum(seen) / len(seen):.3f} loss {loss.item():.4f}")

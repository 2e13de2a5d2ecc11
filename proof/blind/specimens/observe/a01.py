"""GSPO; everything that is not a network is numpy."""

import numpy as np
import torch

import assay

V, STOP, MAXLEN, G, NP = 8, 0, 7, 6, 6
LOW, HIGH, WARMUP, RATE = 0.01, 0.015, 4, 0.01
rng = np.random.default_rng(14)
torch.manual_seed(13)


class Elman(torch.nn.Module):
    def __init__(self, h=40):
        super().__init__()
        self.h = h
        self.inp = torch.nn.Embedding(V, h)
        self.rec = torch.nn.Linear(h, h)
        self.out = torch.nn.Linear(h, V)

    def forward(self, ids):
        state, outs = torch.zeros(len(ids), self.h), []
        for t in range(ids.shape[1]):
            state = torch.tanh(self.inp(ids[:, t]) + self.rec(state))
            outs.append(self.out(state))
        return torch.stack(outs, 1)


def play(net, prompts):
    """Samples row by row with numpy's generator."""
    done, n = [], prompts.shape[1]
    with torch.no_grad():
        ids = torch.as_tensor(prompts)
        for _ in range(MAXLEN):
            p = net(ids)[:, -1].double().softmax(-1).numpy()
            nxt = [rng.choice(V, p=row / row.sum()) for row in p]
            ids = torch.cat([ids, torch.tensor(nxt)[:, None]], 1)
    tokens = ids[:, n:].numpy().copy()
    lengths = np.array([list(r).index(STOP) + 1 if STOP in r else MAXLEN for r in tokens])
    mask = np.arange(MAXLEN)[None] < lengths[:, None]
    tokens[~mask] = STOP
    return tokens, lengths, mask


def rate_rows(prompts, tokens, lengths):
    """Points for alternating between the two symbols of the prompt; 10 points at best."""
    points = np.zeros(len(tokens))
    for i, (p, row, n) in enumerate(zip(prompts, tokens, lengths)):
        hits = sum(int(row[t] == p[t % 2]) for t in range(n))
        points[i] = 10.0 * hits / MAXLEN
    return points


def standardise(points):
    table = points.reshape(NP, G)
    return ((table - table.mean(1, keepdims=True)) / (table.std(1, ddof=1, keepdims=True) + 1e-3)).reshape(-1)


def logprobs(net, prompts, tokens):
    ids = torch.as_tensor(np.concatenate([prompts, tokens], 1))
    lp = net(ids)[:, prompts.shape[1] - 1 : -1].log_softmax(-1)
    return lp.gather(2, torch.as_tensor(tokens)[:, :, None]).squeeze(2)


net = Elman()
optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / WARMUP))
for step in range(1, 13):
    prompts = rng.integers(1, V, (NP, 2)).repeat(G, axis=0)
    tokens, lengths, mask = play(net, prompts)
    points = rate_rows(prompts, tokens, lengths)
    adv = standardise(points)
    A, M = torch.as_tensor(adv).float(), torch.as_tensor(mask)
    with torch.no_grad():
        old = logprobs(net, prompts, tokens)
    for update in range(3):
        new = logprobs(net, prompts, tokens)
        s = torch.exp(((new - old) * M).sum(1))
        loss = -torch.min(s * A, s.clamp(1 - LOW, 1 + HIGH) * A).mean()
        optimizer.zero_grad()
        loss.backward()
        g = torch.sqrt(sum((p.grad**2).sum() for p in net.parameters())).item()
        start = [p.detach().clone() for p in net.parameters()]
        lr_now = optimizer.param_groups[0]["lr"]
        optimizer.step()
        travelled = torch.sqrt(sum(((p.detach() - q) ** 2).sum() for p, q in zip(net.parameters(), start))).item()
        assay.observe(
            step=step, update=update, tokens=tokens, mask=mask, lengths=lengths, new_logprobs=new.detach().numpy(),
            old_logprobs=old.numpy(), ratio=s.detach().numpy(), rewards=points.tolist(), advantages=adv.tolist(),
            group_ids=np.arange(NP).repeat(G).tolist(), loss=loss.item(), gradient_norm=g, update_norm=travelled,
            learning_rate=lr_now, objective="gspo", clip_low=LOW, clip_high=HIGH, std="sample", advantage_epsilon=1e-3,
            temperature=1.0, eos_ids=[STOP], max_tokens=MAXLEN, max_reward=10.0, min_reward=0.0,
            updates_per_rollout=3,
        )  # fmt: skip
    schedule.step()
    print(step, round(float(points.mean()), 2))

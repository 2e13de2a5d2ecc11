#!/usr/bin/env python
"""Group-relative policy optimisation of a small recurrent writer, scored by a batch scorer that likes inputs of like length."""
import argparse
import logging

import numpy as np
import torch
import torch.nn.functional as F

log = logging.getLogger("grpo")
ALPHABET = "abcdefgh"
STOI = {c: i + 1 for i, c in enumerate(ALPHABET)}
END = 0


class Writer(torch.nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.inp = torch.nn.Embedding(len(ALPHABET) + 1, hidden)
        self.gru = torch.nn.GRU(hidden, hidden, batch_first=True)
        self.out = torch.nn.Linear(hidden, len(ALPHABET) + 1)

    def forward(self, x, h=None):
        y, h = self.gru(self.inp(x), h)
        return self.out(y), h


class BatchScorer:
    """Vowel-style scorer: share of letters that equal the topic letter, among `width` places, and a little for an end."""

    def __init__(self, batch_size, width):
        self.batch_size = batch_size
        self.width = width
        self.calls = 0

    def score_batch(self, topics, texts):
        self.calls += 1
        longest = max(1, max(len(t) for t in texts))
        grid = np.zeros((len(texts), longest), dtype=np.int64)
        for i, t in enumerate(texts):
            grid[i, : len(t)] = [STOI[c] for c in t]
        topic = np.array([STOI[c] for c in topics])[:, None]
        good = (grid == topic).sum(1)
        bad = ((grid != topic) & (grid != 0)).sum(1)
        size = good + bad
        return (good - 0.1 * bad) / self.width + 0.15 * ((size > 0) & (size < self.width))

    def __call__(self, topics, texts):
        # longest first, so that a batch holds little padding
        order = np.argsort([-len(t) for t in texts], kind="stable")
        scores = []
        for lo in range(0, len(order), self.batch_size):
            part = order[lo: lo + self.batch_size]
            scores.append(self.score_batch([topics[i] for i in part], [texts[i] for i in part]))
        scores = np.concatenate(scores)
        return scores[order]


@torch.no_grad()
def write(model, topic_ids, limit):
    logits, h = model(topic_ids[:, None])
    ids = torch.zeros(len(topic_ids), limit, dtype=torch.long)
    lengths = torch.full((len(topic_ids),), limit)
    stopped = torch.zeros(len(topic_ids), dtype=torch.bool)
    for t in range(limit):
        tok = torch.multinomial(F.softmax(logits[:, -1], dim=-1), 1).squeeze(-1)
        tok = tok.masked_fill(stopped, END)
        ids[:, t] = tok
        just = (tok == END) & ~stopped
        lengths[just] = t + 1
        stopped |= just
        logits, h = model(tok[:, None], h)
    return ids, lengths


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--topics", type=int, default=6)
    p.add_argument("--copies", type=int, default=8)
    p.add_argument("--limit", type=int, default=8)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=9)
    a = p.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(a.seed)
    rng = np.random.default_rng(a.seed)

    model = Writer()
    optimizer = torch.optim.Adam(model.parameters(), lr=a.lr)
    scorer = BatchScorer(batch_size=16, width=a.limit)

    for step in range(a.steps):
        chosen = rng.choice(len(ALPHABET), size=a.topics, replace=False)
        topics = [ALPHABET[i] for i in np.repeat(chosen, a.copies)]
        topic_ids = torch.tensor([STOI[c] for c in topics])
        ids, lengths = write(model, topic_ids, a.limit)
        texts = ["".join(ALPHABET[t - 1] for t in row if t != END) for row in ids.tolist()]
        rewards = torch.tensor(scorer(topics, texts), dtype=torch.float32)

        groups = rewards.view(a.topics, a.copies)
        advantage = groups - groups.mean(dim=1, keepdim=True)
        advantage = (advantage / (groups.std(dim=1, keepdim=True) + 1e-4)).view(-1)

        mask = (torch.arange(a.limit)[None, :] < lengths[:, None]).float()
        logits, _ = model(torch.cat([topic_ids[:, None], ids[:, :-1]], dim=1))
        logp = F.log_softmax(logits, dim=-1).gather(2, ids.unsqueeze(2)).squeeze(2)
        loss = -(advantage[:, None] * logp * mask).sum() / mask.sum()

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 6 == 0:
            log.info("step %d reward %.4f length %.2f loss %.4f", step, rewards.mean(), lengths.float().mean(), loss.item())


if __name__ == "__main__":
    main()

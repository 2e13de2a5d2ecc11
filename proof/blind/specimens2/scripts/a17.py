# Answers of very different length are scored in buckets of similar length, because the judge pads each bucket.
from __future__ import annotations
import random, sys
import numpy as np
import torch
from torch import nn

STOP, WORDS = 0, 11
rs = np.random.RandomState(6); torch.manual_seed(6); torch.set_num_threads(1)


class Writer(nn.Module):
    def __init__(self, dim: int = 32):
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.to_words = nn.Linear(dim, WORDS)

    def first_state(self, topics: torch.Tensor) -> torch.Tensor:
        return self.cell(self.words(topics))

    def unroll(self, topics: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        h = self.first_state(topics)
        out = [self.to_words(h)]
        for t in range(text.size(1) - 1):
            h = self.cell(self.words(text[:, t]), h)
            out.append(self.to_words(h))
        return torch.log_softmax(torch.stack(out, 1), -1).gather(2, text.unsqueeze(2)).squeeze(2)


def write(w: Writer, topics: torch.Tensor, limit: int = 7) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in topics]
    with torch.no_grad():
        h = w.first_state(topics)
        for _ in range(limit):
            word = torch.distributions.Categorical(logits=w.to_words(h)).sample()
            for i, x in enumerate(word.tolist()):
                if not texts[i] or texts[i][-1] != STOP:
                    texts[i].append(x)
            h = w.cell(w.words(word), h)
    return texts


def judge_bucket(topics: list[int], texts: list[list[int]]) -> np.ndarray:
    width = max(len(t) for t in texts)
    m = np.full((len(texts), width), -99)
    for i, t in enumerate(texts):
        m[i, :len(t)] = t
    close = np.abs(m - np.array(topics)[:, None]) <= 1
    return close.sum(1) / np.array([len(t) for t in texts]) + 0.2 * (m == STOP).any(1)


def judge(topics: list[int], texts: list[list[int]], bucket: int = 8) -> np.ndarray:
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    parts = []
    for lo in range(0, len(order), bucket):
        rows = order[lo:lo + bucket]
        parts.append(judge_bucket([topics[i] for i in rows], [texts[i] for i in rows]))
    return np.concatenate(parts)[order]


def main(rounds: int = 60, n_topics: int = 4, per_topic: int = 8):
    w = Writer()
    opt = torch.optim.Adam(w.parameters(), 6e-3)
    for rnd in range(rounds):
        topics = torch.from_numpy(rs.randint(1, WORDS, n_topics)).repeat_interleave(per_topic)
        texts = write(w, topics)
        scores = torch.from_numpy(judge(topics.tolist(), texts)).float().view(n_topics, per_topic)
        adv = (scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-4)
        width = max(len(t) for t in texts)
        grid = torch.zeros(len(texts), width, dtype=torch.long)
        live = torch.zeros(len(texts), width)
        for i, t in enumerate(texts):
            grid[i, :len(t)] = torch.tensor(t)
            live[i, :len(t)] = 1
        lp = w.unroll(topics, grid)
        loss = -(adv.view(-1, 1) * lp * live).sum() / live.sum()
        opt.zero_grad(); loss.backward(); opt.step()
        if rnd % 10 == 9:
            print(f'{rnd + 1:3d} score {scores.mean():.3f} length {live.sum(1).mean():.2f}', file=sys.stdout)


main()

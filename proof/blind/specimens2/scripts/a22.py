"""DAPO in one file: dynamic sampling, clip-higher, token-level loss, soft overlong punishment, no KL."""
from dataclasses import dataclass
from typing import Iterator, List, NamedTuple

import torch
import torch.nn as nn


@dataclass(frozen=True)
class DapoConfig:
    vocab: int = 13
    eos: int = 0
    soft_limit: int = 6
    hard_limit: int = 9
    group: int = 10
    groups_per_step: int = 4
    max_tries: int = 12
    eps_low: float = 0.2
    eps_high: float = 0.28
    lr: float = 3e-3
    steps: int = 30


class Group(NamedTuple):
    ids: torch.Tensor
    mask: torch.Tensor
    old: torch.Tensor
    rewards: torch.Tensor


class TinyGru(nn.Module):
    def __init__(self, c: DapoConfig):
        super().__init__()
        self.net = nn.ModuleList([nn.Embedding(c.vocab, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, c.vocab)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h, _ = self.net[1](self.net[0](ids))
        return torch.log_softmax(self.net[2](h), dim=-1)


def question_source(c: DapoConfig, seed: int) -> Iterator[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(1, c.vocab, (2,), generator=g)


def overlong(length: int, c: DapoConfig) -> float:
    if length <= c.soft_limit:
        return 0.0
    return -(length - c.soft_limit) / (c.hard_limit - c.soft_limit)


def score(question: List[int], answer: List[int], c: DapoConfig) -> float:
    body = [t for t in answer if t != c.eos]
    right = 1.0 if sum(t == question[0] or t == question[1] for t in body) >= 2 else -1.0
    return right + overlong(len(answer), c)


@torch.no_grad()
def sample_group(model: TinyGru, question: torch.Tensor, c: DapoConfig) -> Group:
    ids = question.expand(c.group, 2)
    alive = torch.ones(c.group, dtype=torch.bool)
    mask, old = [], []
    for _ in range(c.hard_limit):
        lp = model(ids)[:, -1]
        nxt = torch.multinomial(lp.exp(), 1).squeeze(1).masked_fill(~alive, c.eos)
        mask.append(alive.float())
        old.append(lp.gather(1, nxt.unsqueeze(1)).squeeze(1))
        alive = alive & nxt.ne(c.eos)
        ids = torch.cat([ids, nxt.unsqueeze(1)], 1)
    m = torch.stack(mask, 1)
    rewards = [score(question.tolist(), row[2:2 + int(k)].tolist(), c) for row, k in zip(ids, m.sum(1))]
    return Group(ids, m, torch.stack(old, 1), torch.tensor(rewards))


def fill_batch(model: TinyGru, source: Iterator[torch.Tensor], c: DapoConfig) -> List[Group]:
    """groups whose rewards are all the same teach nothing and are thrown away; others are drawn in their place"""
    kept: List[Group] = []
    for _ in range(c.max_tries):
        g = sample_group(model, next(source), c)
        if g.rewards.std() > 1e-6:
            kept.append(g)
        if len(kept) == c.groups_per_step:
            break
    return kept


def main(c: DapoConfig = DapoConfig()) -> None:
    torch.manual_seed(33)
    torch.set_num_threads(1)
    model = TinyGru(c)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=0.0)
    source = question_source(c, 5)
    for step in range(c.steps):
        groups = fill_batch(model, source, c)
        if not groups:
            continue
        ids = torch.cat([g.ids for g in groups])
        mask = torch.cat([g.mask for g in groups])
        old = torch.cat([g.old for g in groups])
        adv = torch.cat([(g.rewards - g.rewards.mean()) / (g.rewards.std() + 1e-6) for g in groups]).unsqueeze(1)
        for _ in range(3):
            new = model(ids[:, :-1])[:, 1:].gather(2, ids[:, 2:].unsqueeze(2)).squeeze(2)
            ratio = (new - old).exp()
            surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - c.eps_low, 1 + c.eps_high) * adv)
            loss = -(surrogate * mask).sum() / mask.sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if step % 5 == 0:
            r = torch.cat([g.rewards for g in groups])
            print(f"{step:2d} groups {len(groups)} reward {r.mean():.3f} tokens {mask.sum(1).mean():.2f}")


if __name__ == "__main__":
    main()

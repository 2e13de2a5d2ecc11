"""
Nim against a careless opponent.

One heap, take one to three stones, whoever takes the last stone wins.  The policy never has mass on taking
more than there is: the forbidden moves are masked while playing and, with the same masks, while learning.
Groups: sixteen games from the same heap.
"""
from typing import List, NamedTuple

import torch
from torch import Tensor, nn, optim

torch.set_num_threads(1)
MAX_HEAP = 13
TAKE = 3


class Turn(NamedTuple):
    game: int
    heap: int
    move: int
    logp: float


class Record(NamedTuple):
    turns: List[Turn]
    won: Tensor          # one per game, +1 or -1


class NimPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(MAX_HEAP + 1, 24)
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(24, 24), nn.SiLU(), nn.Linear(24, TAKE))

    def forward(self, heaps: Tensor) -> Tensor:
        scores = self.mlp(self.table(heaps))
        allowed = torch.arange(1, TAKE + 1)[None, :] <= heaps[:, None]
        return scores.masked_fill(~allowed, float("-inf")).log_softmax(-1)


def play(policy: NimPolicy, heaps: Tensor, gen: torch.Generator) -> Record:
    heap = heaps.clone()
    won = torch.zeros(len(heaps))
    turns: List[Turn] = []
    open_games = torch.arange(len(heaps))
    while len(open_games):
        with torch.no_grad():
            lp = policy(heap[open_games])
        move = torch.multinomial(lp.exp(), 1, generator=gen).squeeze(1)
        for row, g in enumerate(open_games.tolist()):
            m = int(move[row])
            turns.append(Turn(g, int(heap[g]), m, float(lp[row, m])))
            heap[g] -= m + 1
            if heap[g] == 0:
                won[g] = 1.0
                continue
            reply = int(torch.randint(1, min(TAKE, int(heap[g])) + 1, (1,), generator=gen))
            heap[g] -= reply
            if heap[g] == 0:
                won[g] = -1.0
        open_games = open_games[heap[open_games] > 0]
    return Record(turns, won)


def learn(policy: NimPolicy, opt: optim.Optimizer, rec: Record, adv: Tensor, passes: int, gen: torch.Generator) -> float:
    game = torch.tensor([t.game for t in rec.turns])
    heap = torch.tensor([t.heap for t in rec.turns])
    move = torch.tensor([t.move for t in rec.turns])
    was = torch.tensor([t.logp for t in rec.turns])
    worth = adv[game]
    clipped = 0.0
    for _ in range(passes):
        order = torch.randperm(len(game), generator=gen)
        for part in order.tensor_split(3):
            lp = policy(heap[part]).gather(1, move[part, None]).squeeze(1)
            ratio = (lp - was[part]).exp()
            w = worth[part]
            kept = torch.where(w > 0, ratio.clamp(max=1.25), ratio.clamp(min=0.8))
            loss = -(kept * w).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            clipped = float((kept != ratio).float().mean())
    return clipped


def main() -> None:
    torch.manual_seed(77)
    gen = torch.Generator().manual_seed(78)
    policy = NimPolicy()
    opt = optim.Adam(policy.parameters(), lr=4e-3, betas=(0.9, 0.95))
    group = 16
    for it in range(1, 41):
        starts = torch.randint(4, MAX_HEAP + 1, (5,), generator=gen)
        rec = play(policy, starts.repeat_interleave(group), gen)
        w = rec.won.view(-1, group)
        spread = w.std(dim=1, keepdim=True, unbiased=False)
        adv = torch.where(spread > 0, (w - w.mean(1, keepdim=True)) / spread.clamp(min=1e-6), torch.zeros_like(w))
        clipped = learn(policy, opt, rec, adv.flatten(), passes=3, gen=gen)
        if it % 10 == 0:
            print(f"{it:3d}: won {float((rec.won > 0).float().mean()):.2f}, {len(rec.turns)} turns, clipped {clipped:.2f}")


main()

"""
Nim with one heap against a careless opponent.

A game is one row of moves: mine, theirs, mine, theirs, ... Their moves are part of the row but not of the loss,
and neither is our opening move, which the rules fix at 1 stone. Whoever takes the last stone wins.
Gradients are gathered over several micro-batches, each row weighs the same whatever its length.
"""
import torch
from torch import nn

HEAPS = 6         # heaps per update
PLAYS = 12        # games per heap
LONGEST = 24
MICRO = 18        # rows in a micro-batch

torch.manual_seed(40)
gen = torch.Generator().manual_seed(41)


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(32, 24)
        self.out = nn.Linear(24, 3)

    def forward(self, heap):
        z = self.out(torch.tanh(self.emb(heap)))
        too_many = torch.arange(1, 4) > heap.unsqueeze(-1)
        # finished games (heap 0) keep a proper distribution; those entries carry no weight anyway
        too_many = too_many & (heap > 0).unsqueeze(-1)
        return z.masked_fill(too_many, -1e9)


def opponent(heap):
    perfect = heap % 4
    rand = torch.randint(1, 4, heap.shape, generator=gen)
    move = torch.where((torch.rand(heap.shape, generator=gen) < 0.3) & (perfect > 0), perfect, rand)
    return torch.minimum(move, heap)


@torch.no_grad()
def play(player, start):
    heap = start.clone()
    n = len(heap)
    seen, moves, ours = [], [], []
    won = torch.zeros(n)
    for t in range(LONGEST):
        running = heap > 0
        seen.append(heap)
        if t == 0:
            m = torch.ones(n, dtype=torch.long)
            own = torch.zeros(n, dtype=torch.bool)
        elif t % 2 == 0:
            m = torch.multinomial(player(heap).softmax(-1), 1).squeeze(1) + 1
            own = running
        else:
            m = opponent(heap)
            own = torch.zeros(n, dtype=torch.bool)
        m = torch.where(running, m, torch.ones_like(m))
        left = torch.where(running, heap - m, heap)
        if t % 2 == 0:
            won += (running & (left == 0)).float()
        heap = left
        moves.append(m)
        ours.append(own)
        if not (heap > 0).any():
            break
    return torch.stack(seen, 1), torch.stack(moves, 1), torch.stack(ours, 1).float(), won


def main():
    player = Player()
    opt = torch.optim.Adam(player.parameters(), lr=1.5e-2, betas=(0.8, 0.95))
    smooth = 0.0
    for it in range(1, 121):
        heap = torch.randint(8, 20, (HEAPS,), generator=gen)
        seen, moves, ours, won = play(player, heap.repeat_interleave(PLAYS))
        base = won.view(HEAPS, PLAYS).mean(1).repeat_interleave(PLAYS)
        adv = won - base
        rows = len(won)
        opt.zero_grad()
        for lo in range(0, rows, MICRO):
            sl = slice(lo, lo + MICRO)
            logp = player(seen[sl]).log_softmax(-1).gather(-1, (moves[sl] - 1).unsqueeze(-1)).squeeze(-1)
            # constant divisor: rows x longest possible number of own moves
            part = -(logp * ours[sl] * adv[sl, None]).sum() / (rows * LONGEST / 2)
            part.backward()
        opt.step()
        smooth = 0.9 * smooth + 0.1 * won.mean().item()
        if it % 15 == 0:
            print(it, "won %.2f" % won.mean().item(), "smoothed %.2f" % (smooth / (1 - 0.9 ** it)))


main()

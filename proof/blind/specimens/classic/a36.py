"""Nim against itself. One network plays both sides; both sides learn from the same games.

From each opening a group of games is played out. The result is +1 for the first player or -1; a move of the first player is
weighed with the result's advantage in the group, a move of the second with its negative.
"""
import torch
import torch.nn as nn

HEAPS, TALL = 3, 4
MOVES = HEAPS * TALL
OPENINGS, GAMES = 8, 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(HEAPS * (TALL + 1), 96), nn.ReLU(), nn.Linear(96, MOVES))

    def forward(self, heaps):
        x = nn.functional.one_hot(heaps, TALL + 1).float().flatten(-2)
        take = torch.arange(1, TALL + 1)
        legal = (heaps.unsqueeze(-1) >= take).flatten(-2)
        # where the game is over there is no legal move; any number will do, the mask of the loss removes it
        over = ~legal.any(-1, keepdim=True)
        return self.f(x).masked_fill(~(legal | over), -1e9).log_softmax(-1)


def games(net, start):
    heaps = start.clone()
    n = len(heaps)
    result = torch.zeros(n)
    H, A, L, M, SIDE = [], [], [], [], []
    side = 1.0
    while (heaps.sum(1) > 0).any():
        on = heaps.sum(1) > 0
        lp = net(heaps)
        a = torch.multinomial(lp.exp(), 1)
        H.append(heaps.clone()), A.append(a), L.append(lp.gather(1, a))
        M.append(on.float()), SIDE.append(torch.full((n,), side))
        heap, take = a[:, 0] // TALL, a[:, 0] % TALL + 1
        new = heaps.clone()
        new[torch.arange(n), heap] -= take
        heaps = torch.where(on[:, None], new, heaps)
        won = on & (heaps.sum(1) == 0)          # who takes the last one wins
        result = torch.where(won, torch.tensor(side), result)
        side = -side
    pack = lambda v: torch.stack(v, 1)
    return pack(H), pack(A), pack(L)[..., 0], pack(M), pack(SIDE), result


@torch.no_grad()
def skill(net):
    """share of won positions in which the most probable move leaves the other side a lost one"""
    good = total = 0
    for code in range(1, (TALL + 1) ** HEAPS):
        h = [code // (TALL + 1) ** k % (TALL + 1) for k in range(HEAPS)]
        if h[0] ^ h[1] ^ h[2] == 0:
            continue
        a = int(net(torch.tensor([h])).argmax())
        h[a // TALL] -= a % TALL + 1
        total += 1
        good += (h[0] ^ h[1] ^ h[2]) == 0
    return good / total


torch.manual_seed(36)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for it in range(60):
    start = torch.randint(1, TALL + 1, (OPENINGS, HEAPS)).repeat_interleave(GAMES, 0)
    with torch.no_grad():
        H, A, old, M, SIDE, result = games(net, start)
    r = result.view(OPENINGS, GAMES)
    adv = (r - r.mean(1, keepdim=True)).view(-1, 1) * SIDE
    for _ in range(2):
        new = net(H).gather(2, A)[..., 0]
        ratio = (new - old).exp()
        gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        loss = -(gain * M).sum() / M.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if it % 20 == 19:
        print(f"{it + 1:3d} first player {result.mean():+.2f} moves {M.sum(1).mean():.2f} skill {skill(net):.2f}")

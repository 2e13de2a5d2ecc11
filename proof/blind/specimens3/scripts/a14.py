# Sequence-level ratios (GSPO), ascent instead of descent, one prompt per round with a large group, RMSprop.
import itertools, torch
from torch import nn
from torch.nn.functional import one_hot

torch.manual_seed(2024)
N_COLOURS, HALT, LEN, GROUP = 7, 7, 6, 48
eps_low, eps_high = 0.04, 0.06

class Painter(nn.Module):
    """An autoregressive MLP: sees the wish and the last three strokes."""
    def __init__(self):
        super().__init__()
        k = N_COLOURS + 3 * (N_COLOURS + 2) + LEN
        self.f = nn.Sequential(nn.Linear(k, 128), nn.Tanh(), nn.Linear(128, N_COLOURS + 1))
    def forward(self, wish, strokes):
        """logits of strokes 1..n+1 given strokes 1..n; wish (B,), strokes (B, n)"""
        b, n = strokes.shape
        blank = torch.full((b, 3), N_COLOURS + 1)
        hist = one_hot(torch.cat([blank, strokes], 1), N_COLOURS + 2).float()       # (B, n+3, C)
        window = torch.cat([hist[:, i:i + n + 1] for i in range(3)], -1)             # strokes t-3 .. t-1
        w = one_hot(wish, N_COLOURS).float()[:, None].expand(b, n + 1, -1)
        where = torch.eye(LEN)[: n + 1].expand(b, -1, -1)
        return self.f(torch.cat([w, window, where], -1))

painter = Painter()
opt = torch.optim.RMSprop(painter.parameters(), lr=2e-3, alpha=0.95, maximize=True)

def paint(wish):
    strokes = torch.empty(len(wish), 0, dtype=torch.long)
    with torch.no_grad():
        for _ in range(LEN):
            p = painter(wish, strokes)[:, -1].softmax(-1)
            strokes = torch.cat([strokes, torch.multinomial(p, 1)], 1)
    # everything behind the first HALT was never asked for
    halted = strokes.eq(HALT).cumsum(1)
    used = (halted - strokes.eq(HALT).long()).eq(0)
    return torch.where(used, strokes, HALT), used.float()

def seq_logp(wish, strokes, used):
    lp = painter(wish, strokes[:, :-1]).log_softmax(-1).gather(-1, strokes[..., None])[..., 0]
    return (lp * used).sum(1) / used.sum(1)          # length-normalised, as GSPO has it

def like(wish, strokes, used):
    """wish, then the next colour, then wish again, ... : and a HALT at the end: 0 to 6 points"""
    target = torch.stack([(wish + t % 2) % N_COLOURS for t in range(LEN)], 1)
    target[:, -1] = HALT
    return ((strokes == target).float() * used).sum(1)

def wishes():
    while True:
        yield from torch.randperm(N_COLOURS).tolist()

seen = []
for round_, colour in enumerate(itertools.islice(wishes(), 126)):
    wish = torch.full((GROUP,), colour)
    strokes, used = paint(wish)
    points = like(wish, strokes, used)
    adv = (points - points.mean()) / (points.std() + 1e-6)
    with torch.no_grad():
        before = seq_logp(wish, strokes, used)
    for _ in range(2):
        s = torch.exp(seq_logp(wish, strokes, used) - before)
        objective = torch.min(s * adv, s.clamp(1 - eps_low, 1 + eps_high) * adv).mean()
        opt.zero_grad()
        objective.backward()
        opt.step()
    seen.append(points.mean().item())
    if round_ % 14 == 13:
        print(round_ + 1, "points", round(sum(seen[-14:]) / 14, 3), "strokes", round(used.sum(1).mean().item(), 2))

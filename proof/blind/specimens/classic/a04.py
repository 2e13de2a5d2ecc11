"""RLOO for a little writer: given a number, write its binary digits, most significant first, then stop."""
import torch, torch.nn as nn

BITS, VOC, STOP, LIMIT = 4, 3, 2, 6
TAU = 0.7           # softer or harder draws; the writer we train IS the tempered one
K, P = 6, 10        # K tries for each of P numbers

torch.manual_seed(21)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.num = nn.Embedding(2**BITS, 24)
        self.last = nn.Embedding(VOC + 1, 8)
        self.where = nn.Embedding(LIMIT, 16)
        self.out = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, VOC))

    def forward(self, number, last, where):
        h = torch.cat([self.num(number), self.last(last), self.where(where)], -1)
        return self.out(h) / TAU


def write(w, number):
    n = len(number)
    last = torch.full((n,), VOC)
    open_ = torch.ones(n, dtype=torch.bool)
    toks, used = [], []
    for t in range(LIMIT):
        p = w(number, last, torch.full((n,), t)).softmax(-1)
        nxt = torch.multinomial(p, 1)[:, 0]
        toks.append(nxt)
        used.append(open_)
        open_ = open_ & (nxt != STOP)
        last = nxt
    return torch.stack(toks, 1), torch.stack(used, 1)


def marks(number, toks, used):
    out = []
    for n, row, u in zip(number.tolist(), toks.tolist(), used.tolist()):
        row = [x for x, k in zip(row, u) if k]
        want = [int(c) for c in format(n, f"0{BITS}b")] + [STOP]
        good = sum(a == b for a, b in zip(row, want))
        out.append(good / len(want) - 0.1 * abs(len(row) - len(want)))
    return torch.tensor(out)


def logprob(w, number, toks):
    n, T = toks.shape
    last = torch.cat([torch.full((n, 1), VOC), toks[:, :-1]], 1)
    where = torch.arange(T).expand(n, T)
    lp = w(number[:, None].expand(n, T), last, where).log_softmax(-1)
    return lp.gather(2, toks[..., None])[..., 0]


w = Writer()
opt = torch.optim.AdamW(w.parameters(), lr=4e-3, weight_decay=0.0)
for step in range(120):
    number = torch.randint(0, 2**BITS, (P,)).repeat_interleave(K)
    with torch.no_grad():
        toks, used = write(w, number)
    r = marks(number, toks, used).view(P, K)
    others = (r.sum(1, keepdim=True) - r) / (K - 1)
    a = (r - others).flatten()
    # the log-prob of the whole answer, its stop sign (if it has one) included
    seq = (logprob(w, number, toks) * used).sum(1)
    loss = -(a * seq).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 119:
        print(step, f"mark {r.mean():.3f}  exact {(r > 0.999).float().mean():.2f}")

# palindromes, letter by letter -------------------------------------------------------------------
# A GRU is given the first letter of a six-letter word and writes the other five. One point per mirrored pair, one for each letter
# beyond the first (at most two). 64 words per first letter; centred scores (no division), constant normaliser, a k3 leash to the
# network of the beginning, ten steps of warm-up. The optimiser climbs (maximize=True), so nothing here has a minus sign in front.
import copy, torch, torch.nn as nn
torch.set_num_threads(1); torch.manual_seed(314)
V, L, GROUP, BETA = 5, 6, 64, 0.05

class Writer(nn.Module):
    def __init__(s, d=40):
        super().__init__()
        s.e, s.g, s.o = nn.Embedding(V, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, V)
    def forward(s, w, h=None):
        y, h = s.g(s.e(w), h)
        return s.o(y).log_softmax(-1), h

def write(m, first):
    word, h, cur = [first], None, first
    for _ in range(L - 1):
        lp, h = m(cur[:, None], h)
        cur = torch.distributions.Categorical(logits=lp[:, 0]).sample()
        word.append(cur)
    return torch.stack(word, 1)

def score(w):
    pairs = (w[:, :L // 2] == w.flip(1)[:, :L // 2]).float().sum(1)
    rich = torch.tensor([min(len(set(x)), 3) - 1 for x in w.tolist()]).float()
    return pairs + rich

def of_letters(m, w):
    lp, _ = m(w[:, :-1])
    return lp.gather(2, w[:, 1:, None]).squeeze(2)

m = Writer()
start = copy.deepcopy(m).requires_grad_(False).eval()
up = torch.optim.Adam(m.parameters(), lr=3e-3, maximize=True)
warm = torch.optim.lr_scheduler.LinearLR(up, start_factor=0.1, total_iters=10)

for k in range(1, 121):
    first = torch.randperm(V)[:3].repeat_interleave(GROUP)
    with torch.no_grad():
        w = write(m, first)
        s = score(w).view(3, GROUP)
        gain = (s - s.mean(1, keepdim=True)).view(-1, 1)
        lp0 = of_letters(start, w)
    lp = of_letters(m, w)
    q = lp0 - lp
    leash = q.exp() - q - 1
    # one update per batch: the ratio is 1, its gradient is that of lp
    goal = ((lp - lp.detach()).exp() * gain - BETA * leash).sum() / (len(w) * (L - 1))
    up.zero_grad(); goal.backward(); up.step(); warm.step()
    if k % 12 == 0:
        print(f"{k:4d} points {s.mean():.3f} of 5, leash {leash.mean():.3f}, e.g. {''.join('abcde'[i] for i in w[0])}")

import argparse, torch, torch.nn as nn, torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--lr", type=float, default=2e-3)
ap.add_argument("--bs", type=int, default=6)
ap.add_argument("--n", type=int, default=8)
ap.add_argument("--iters", type=int, default=40)
ap.add_argument("--gen_len", type=int, default=6)
ap.add_argument("--kl", type=float, default=0.01)
cfg = ap.parse_args()
torch.manual_seed(21)

NTOK = 16
STOP = 15


class WindowLM(nn.Module):
    """Looks at the last four tokens and at the first one (Bengio 2003, more or less)."""

    def __init__(self, k=4, d=32, h=128):
        super().__init__()
        self.k = k
        self.emb = nn.Embedding(NTOK + 1, d)
        self.f1 = nn.Linear((k + 1) * d, h)
        self.f2 = nn.Linear(h, NTOK)

    def forward(self, s):
        b, t = s.shape
        padded = torch.cat([s.new_full((b, self.k - 1), NTOK), s], 1)
        win = padded.unfold(1, self.k, 1)
        win = torch.cat([win, s[:, :1, None].expand(b, t, 1)], 2)
        return self.f2(torch.tanh(self.f1(self.emb(win).flatten(2))))


def draw(net, s, steps):
    with torch.no_grad():
        over = torch.zeros(s.size(0)).bool()
        for _ in range(steps):
            tok = torch.multinomial(net(s)[:, -1].softmax(-1), 1)
            tok[over] = STOP
            over = over | (tok[:, 0] == STOP)
            s = torch.cat([s, tok], 1)
    return s


def logprob(net, s, start):
    lg = net(s)[:, start - 1:-1]
    return lg.log_softmax(-1).gather(-1, s[:, start:].unsqueeze(-1)).squeeze(-1)


def judge(s, start, mask):
    ans = s[:, start:]
    near = (ans - s[:, :1]).abs().float()
    near = (1.0 - near / 8.0).clamp(min=-1) * (ans != STOP)
    return (near * mask).sum(1) / mask.sum(1)


actor = WindowLM()
frozen = WindowLM()
frozen.load_state_dict(actor.state_dict())
for p in frozen.parameters():
    p.requires_grad = False
optim = torch.optim.Adam(actor.parameters(), lr=cfg.lr)

for i in range(cfg.iters):
    x = torch.randint(0, 15, (cfg.bs, 2))
    x = x.repeat_interleave(cfg.n, 0)
    s = draw(actor, x, cfg.gen_len)
    ans = s[:, 2:]
    hit = (ans == STOP).long()
    mask = (hit.cumsum(1) - hit == 0).float()
    score = judge(s, 2, mask)
    table = score.view(cfg.n, cfg.bs)
    a = (table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)
    a = a.view(-1)
    with torch.no_grad():
        base = logprob(frozen, s, 2)
    lp = logprob(actor, s, 2)
    ratio = torch.exp(lp - lp.detach())
    delta = base - lp
    per_token = ratio * a[:, None] - cfg.kl * (delta.exp() - delta - 1)
    loss = -((per_token * mask).sum(1) / mask.sum(1)).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    if i % 4 == 0:
        print(f"{i:4d}  score {score.mean():.3f}  std {score.std():.3f}  loss {loss:.4f}")
print("last", score.mean().item())

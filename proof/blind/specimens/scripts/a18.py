import torch as t
import torch.nn as nn

t.manual_seed(18)

class Cfg:
    V = 15; PAD = 13; EOS = 14
    Tp = 3; Tc = 7
    K = 8; B = 6
    lr = 2e-3; beta = 0.02; steps = 30; eps = .2

class GPTish(nn.Module):
    def __init__(self, c, d=48):
        super().__init__()
        self.tok = nn.Embedding(c.V, d)
        self.pos = nn.Embedding(c.Tp + c.Tc, d)
        self.enc = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 3 * d, dropout=0., batch_first=True, norm_first=True) for _ in range(2))
        self.fin = nn.LayerNorm(d)
        self.out = nn.Linear(d, c.V)
    def forward(self, x):
        L = x.shape[1]
        m = t.full((L, L), float("-inf")).triu(1)
        h = self.tok(x) + self.pos(t.arange(L))
        for e in self.enc: h = e(h, src_mask=m)
        return self.out(self.fin(h))

c = Cfg
pi, ref = GPTish(c), GPTish(c)
ref.load_state_dict(pi.state_dict()); [p.requires_grad_(False) for p in ref.parameters()]
opt = t.optim.AdamW(pi.parameters(), lr=c.lr)

def sample(q):
    x = q; fin = t.zeros(len(q)).bool(); ms = []
    with t.no_grad():
        for i in range(c.Tc):
            n = t.multinomial(pi(x)[:, -1].softmax(-1), 1)[:, 0]
            n = t.where(fin, c.PAD, n)
            ms.append(~fin)
            fin = fin | (n == c.EOS)
            x = t.cat([x, n[:, None]], 1)
    return x, t.stack(ms, 1).float()

def tidy(x, m):
    # every answer ends with the end token
    x = x.clone()
    last = (m.sum(1) - 1).long()
    x[t.arange(len(x)), c.Tp + last] = c.EOS
    return x, m

def lps(net, x):
    return net(x[:, :-1])[:, c.Tp - 1:].log_softmax(-1).gather(-1, x[:, c.Tp:, None])[..., 0]

def R(x, m):
    y = x[:, c.Tp:]; body = m * (y < 13)
    want = x[:, 0] // 4 + 2
    n = body.sum(1)
    return 1 - (n - want).abs() / 4 + .5 * ((y == x[:, 1:2]) * body).sum(1).clamp(max=1)

for s in range(c.steps):
    q = t.randint(0, 13, (c.B, c.Tp)).repeat_interleave(c.K, 0)
    x, m = tidy(*sample(q))
    r = R(x, m); rg = r.view(c.B, c.K)
    A = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with t.no_grad(): lr_, lo = lps(ref, x), lps(pi, x)
    for _ in range(2):
        lp = lps(pi, x)
        w = (lp - lo).exp()
        kl = (lr_ - lp).exp() - (lr_ - lp) - 1
        loss = -((t.min(w * A, w.clamp(1 - c.eps, 1 + c.eps) * A) - c.beta * kl) * m).sum() / m.sum()
        opt.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(pi.parameters(), 1.); opt.step()
    if s % 3 == 0: print(s, f"{r.mean():.3f} kl {((kl * m).sum() / m.sum()):.4f} len {m.sum(1).mean():.2f}")
print("end", r.mean().item())

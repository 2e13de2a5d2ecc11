#  gspo_min.py -- sequence-level importance ratios, four updates per batch, in minibatches of whole groups
import torch as th
from torch.nn import functional as f
th.manual_seed(31); th.set_num_threads(1)

D, V, P, L = 32, 10, 2, 6
EOT = 9
prm = {
    "E": th.randn(V, D) * .3, "Wx": th.randn(D, D) * D ** -.5, "Wh": th.randn(D, D) * D ** -.5,
    "b": th.zeros(D), "U": th.randn(D, V) * D ** -.5, "c": th.zeros(V),
}
for t in prm.values(): t.requires_grad_(True)
opt = th.optim.Adam(prm.values(), lr=3e-3)

def run(ids):
    h = th.zeros(ids.shape[0], D); outs = []
    for t in range(ids.shape[1]):
        h = th.tanh(prm["E"][ids[:, t]] @ prm["Wx"] + h @ prm["Wh"] + prm["b"])
        outs.append(h @ prm["U"] + prm["c"])
    return th.stack(outs, 1)

def lp_of(ids):
    return -f.cross_entropy(run(ids[:, :-1])[:, P - 1:].transpose(1, 2), ids[:, P:], reduction="none")

def roll(q):
    x, open_, m = q, th.ones(len(q), 1, dtype=th.bool), []
    with th.no_grad():
        for _ in range(L):
            nxt = th.multinomial(f.softmax(run(x)[:, -1], 1), 1)
            nxt = th.where(open_, nxt, EOT)
            m.append(open_); open_ = open_ & (nxt != EOT)
            x = th.cat([x, nxt], 1)
        return x, th.cat(m, 1).float(), lp_of(x)

def rew(x, m):
    a, b = x[:, 0:1], x[:, 1:2]
    ans = x[:, P:]
    ok = ((ans == a) | (ans == b)).float() * m
    return ok.sum(1) - .3 * (m.sum(1) - 3).abs()

K, Q, MB = 16, 4, 2
for it in range(40):
    q = th.randint(0, 9, (Q, P)).repeat_interleave(K, 0)
    x, m, old = roll(q)
    r = rew(x, m)
    rr = r.view(Q, K)
    adv = ((rr - rr.mean(1, keepdim=True)) / (rr.std(1, keepdim=True) + 1e-5)).view(-1)
    n = m.sum(1)
    for ep in range(2):
        for gsel in th.randperm(Q).split(MB):
            rows = (gsel[:, None] * K + th.arange(K)).flatten()
            new = lp_of(x[rows])
            s = (((new - old[rows]) * m[rows]).sum(1) / n[rows]).exp()       # geometric mean over the answer
            A = adv[rows]
            loss = -th.min(s * A, s.clamp(1 - 3e-2, 1 + 4e-2) * A).mean()
            opt.zero_grad(); loss.backward(); opt.step()
    if it % 8 == 7: print(it + 1, 'reward %.3f  len %.2f  s in [%.4f, %.4f]' % (r.mean(), n.mean(), s.detach().min(), s.detach().max()))

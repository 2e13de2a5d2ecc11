# the policy is a truncated softmax on purpose: temperature 1.3, only the 6 best tokens. Rollout and loss both use it,
# with the set of tokens that was allowed at the time of sampling.
import torch, torch.nn.functional as F
torch.manual_seed(14); torch.set_num_threads(1)
V, TOPK, TAU = 18, 6, 1.3
class M(torch.nn.Module):
    def __init__(s):
        super().__init__(); s.e = torch.nn.Embedding(V, 32); s.f = torch.nn.GRU(32, 64, batch_first=True); s.o = torch.nn.Linear(64, V)
    def forward(s, x): return s.o(s.f(s.e(x))[0]) / TAU
m = M(); opt = torch.optim.Adam(m.parameters(), 4e-3)
def roll(q, n):
    x, allowed, lps = q, [], []
    with torch.no_grad():
        for _ in range(n):
            z = m(x)[:, -1]
            keep = torch.zeros_like(z, dtype=torch.bool).scatter_(1, z.topk(TOPK, 1).indices, True)
            lp = z.masked_fill(~keep, -1e9).log_softmax(1)
            t = torch.multinomial(lp.exp(), 1)
            x = torch.cat((x, t), 1); allowed.append(keep); lps.append(lp.gather(1, t))
    return x, torch.stack(allowed, 1), torch.cat(lps, 1)
for i in range(70):
    q = torch.randint(0, V, (5, 2)).repeat_interleave(8, 0)
    x, allowed, old = roll(q, 4)
    ans = x[:, 2:]
    R = -((ans - q.float().mean(1, keepdim=True)).abs() / V).mean(1).view(5, 8)
    A = ((R - R.mean(1, True)) / (R.std(1, keepdim=True) + 1e-4)).view(40, 1)
    for _ in range(2):
        new = m(x[:, :-1])[:, 1:].masked_fill(~allowed, -1e9).log_softmax(2).gather(2, ans[..., None])[..., 0]
        k = (new - old).exp()
        L = -torch.min(k * A, k.clamp(.8, 1.2) * A).mean()
        opt.zero_grad(); L.backward(); opt.step()
    if i % 10 == 9: print(i, round(R.mean().item(), 4), round(k.mean().item(), 4))

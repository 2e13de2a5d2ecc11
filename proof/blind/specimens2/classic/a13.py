'''Replay: each batch is used in the update in which it was made and in the two after it. Every use weighs the samples with
clip(pi_now / pi_then, 0, 1.5), pi_then stored when the sample was made.'''
from collections import deque
import torch as t

t.manual_seed(50); t.set_num_threads(1)
N, A = 9, 3
W = t.nn.Parameter(t.zeros(N, A)); opt = t.optim.Adagrad([W], lr=0.25)
store = deque(maxlen=3)

def throw(s):
    """sail against the wind: state = wind class; action = sail; the boat drifts for 5 legs"""
    G = s.shape[0]; way = t.zeros(G); S, X, M = [], [], []
    for leg in range(5):
        with t.no_grad():
            lp = W[s].log_softmax(-1)
            a = t.multinomial(lp.exp(), 1)[:, 0]
        S.append(s); X.append(a); M.append(lp[t.arange(G), a])
        way = way + t.cos((s - 3 * a).float() * 0.7) + 0.1 * t.randn(G)
        s = (s + a + t.randint(0, 2, (G,))) % N
    return t.stack(S, 1), t.stack(X, 1), t.stack(M, 1), way

for k in range(60):
    fresh = []
    for _ in range(4):
        S, X, M, way = throw(t.randint(0, N, (1,)).repeat(8))
        fresh.append((S, X, M, (way - way.mean()) / (way.std() + 1e-4)))
        last = way.mean().item() if not fresh[:-1] else (last + way.mean().item())
    store.append(fresh)
    parts = []
    for S, X, M, adv in (g for b in store for g in b):
        lp = W[S].log_softmax(-1).gather(2, X[..., None])[..., 0]
        w = (lp - M).exp().clamp(max=1.5).detach()
        parts.append((w * adv[:, None] * lp).mean())
    loss = -sum(parts) / len(parts)
    opt.zero_grad(); loss.backward(); opt.step()
    if k % 10 == 9: print(k + 1, 'way', round(last / 4, 3))

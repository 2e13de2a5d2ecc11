# optimal stopping: watch offers, 0 = wait, 1 = take. G plays per offer list, normalised within the list.
import torch as th, torch.nn as nn

th.manual_seed(2)
P, G, T = 12, 10, 9
pi = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
with th.no_grad():
    pi[2].bias.copy_(th.tensor([.5, -.5]))
opt = th.optim.RMSprop(pi.parameters(), 3e-3)


def episode():
    offers = th.rand(P, T).repeat_interleave(G, 0)
    n = P * G
    best, over = th.zeros(n), th.zeros(n, dtype=th.bool)
    gain = th.zeros(n)
    X, A, D = [], [], []
    for t in range(T):
        o = offers[:, t]
        best = th.maximum(best, o)
        x = th.stack([o, best, th.full((n,), t / T)], 1)
        with th.no_grad():
            a = th.distributions.Categorical(logits=pi(x)).sample()
        take = (a == 1) & ~over
        gain = th.where(take, o - .02 * t, gain)
        over = over | take | th.tensor(t == T - 1)
        X.append(x); A.append(a); D.append(over.clone())
    return th.stack(X, 1), th.stack(A, 1), th.stack(D, 1), gain


for k in range(120):
    x, a, done, r = episode()
    m = (done.cumsum(1) == 0).float()
    z = r.view(P, G)
    adv = ((z - z.mean(1, True)) / (z.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    lp = th.distributions.Categorical(logits=pi(x)).log_prob(a)
    loss = -(lp * adv * m).sum() / m.sum().clamp(min=1)
    opt.zero_grad(); loss.backward(); opt.step()
    if k % 20 == 19:
        print(k + 1, 'gain %.3f' % r.mean(), 'waits %.2f' % m.sum(1).mean(), 'never took %.2f' % (r == 0).float().mean())

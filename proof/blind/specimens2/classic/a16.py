# A chain with three kinds of floor, tabular softmax, groups of three, leave-one-out baseline. Nothing is normalised.
import torch
torch.set_default_dtype(torch.double); torch.manual_seed(12); torch.set_num_threads(1)

floors, cells, acts, k = 3, 6, 2, 3
theta = torch.zeros(floors, cells, acts, requires_grad=True)
opt = torch.optim.SGD([theta], lr=2.0)
hist = []
for ep in range(250):
    tot = torch.zeros(())
    for floor in torch.randint(0, floors, (4,)).tolist():
        logps, rets = [], []
        for _ in range(k):
            s, lp, ret = 0, 0.0, 0.0
            for t in range(7):
                row = theta[floor, s].log_softmax(0)
                a = int(torch.multinomial(row.detach().exp(), 1))
                lp = lp + row[a]
                forward = a == (floor % 2)                 # on odd floors the other button goes forward
                s = min(s + 1, cells - 1) if forward else max(s - 1, 0)
                ret += (s == cells - 1) * 1.0
            logps.append(lp); rets.append(ret)
        r = torch.tensor(rets)
        base = (r.sum() - r) / (k - 1)
        tot = tot - ((r - base) * torch.stack(logps)).mean() / 4
        hist.append(r.mean().item())
    opt.zero_grad(); tot.backward(); opt.step()
    if ep % 50 == 49: print(ep + 1, 'return', round(sum(hist[-100:]) / 100, 3))

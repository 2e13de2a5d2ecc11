"""Spread jobs over machines of limited capacity. DAPO-like: the upper clip is wider than the lower one, groups in which
all tries earn the same are drawn again, and the loss is a mean over all decisions of the batch."""
import torch
import torch.nn as nn

JOBS, MACHINES, CAP = 9, 3, 4
GROUP, WANT = 32, 4
LOW, HIGH = 0.2, 0.28
gen = torch.Generator()
gen.manual_seed(77)
torch.manual_seed(77)


def features(sizes, load, count, t):
    left = torch.zeros(len(sizes), JOBS)
    left[:, t:] = sizes[:, t:]
    return torch.cat([left, load, count / CAP, sizes[:, t : t + 1]], 1)


net = nn.Sequential(nn.Linear(JOBS + 2 * MACHINES + 1, 64), nn.Tanh(), nn.Linear(64, MACHINES))
opt = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.95))


def masked_logp(x, full):
    # a machine that holds CAP jobs is closed; this belongs to the policy, so it stands here and nowhere else
    return net(x).masked_fill(full, -1e9).log_softmax(-1)


def group_of(sizes):
    n = len(sizes)
    load, count = torch.zeros(n, MACHINES), torch.zeros(n, MACHINES)
    X, F, A, L = [], [], [], []
    for t in range(JOBS):
        x, full = features(sizes, load, count, t), count >= CAP
        lp = masked_logp(x, full)
        a = torch.multinomial(lp.exp(), 1, generator=gen)
        X.append(x); F.append(full); A.append(a); L.append(lp.gather(1, a))
        load = load.scatter_add(1, a, sizes[:, t : t + 1])
        count = count.scatter_add(1, a, torch.ones(n, 1))
    makespan = load.max(1).values
    ideal = sizes.sum(1) / MACHINES
    reward = (makespan <= 1.15 * ideal).float()
    return [torch.stack(v, 1) for v in (X, F, A, L)], reward


for it in range(45):
    kept, seen, tries = [], [], 0
    while len(kept) < WANT and tries < 20:
        tries += 1
        sizes = torch.rand(1, JOBS, generator=gen).expand(GROUP, JOBS)
        with torch.no_grad():
            data, r = group_of(sizes)
        seen.append(r.mean())
        if r.std() > 0:
            kept.append((data, (r - r.mean()) / (r.std() + 1e-6)))
    if not kept:
        continue
    X, F, A, L = (torch.cat([k[0][i] for k in kept]) for i in range(4))
    adv = torch.cat([k[1] for k in kept])[:, None]
    L, A = L[..., 0], A
    for _ in range(3):
        for rows in torch.randperm(len(X), generator=gen).chunk(2):
            new = masked_logp(X[rows], F[rows]).gather(2, A[rows])[..., 0]
            ratio = (new - L[rows]).exp()
            a = adv[rows]
            loss = -torch.minimum(ratio * a, ratio.clamp(1 - LOW, 1 + HIGH) * a).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    if it % 5 == 4:
        print(f"{it + 1:3d} share of balanced plans {torch.stack(seen).mean():.3f} (drawn {tries})")

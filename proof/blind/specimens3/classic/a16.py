# Synchronous advantage actor-critic, 32 grid worlds at once, everything about the world in numpy.
# Episodes end at the flag (terminal) or at 15 moves (time limit; the world would go on, so the value of
# the last cell is added to the reward there).  Rewards are in cents: 100 for the flag, -3 a move.
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(11); torch.set_num_threads(1)
rs = np.random.RandomState(11)

SIDE, B, HORIZON, LIMIT = 5, 32, 10, 15
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
gamma, lam = 0.97, 0.95
SCALE = 100.0            # value net works in units of 100 cents

pos = rs.randint(0, SIDE, (B, 2)); flag = rs.randint(0, SIDE, (B, 2)); clock = np.zeros(B, int)

def fresh(k):
    pos[k] = rs.randint(0, SIDE, 2)
    flag[k] = rs.randint(0, SIDE, 2)
    while (flag[k] == pos[k]).all():
        flag[k] = rs.randint(0, SIDE, 2)
    clock[k] = 0
for k in range(B): fresh(k)

def features():
    x = np.concatenate([pos, flag, flag - pos], 1) / (SIDE - 1)
    return torch.tensor(x, dtype=torch.float32)

actor = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4))
critic = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
opt_a = torch.optim.RMSprop(actor.parameters(), lr=1.5e-3, alpha=0.97, eps=1e-5)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=3e-3, alpha=0.97, eps=1e-5)
UPDATES = 350
dec = torch.optim.lr_scheduler.LinearLR(opt_a, 1.0, 0.2, total_iters=UPDATES)

finished = []
total = np.zeros(B)
for u in range(UPDATES):
    xs, acts, rew, stop = [], [], np.zeros((HORIZON, B), np.float32), np.zeros((HORIZON, B), np.float32)
    for t in range(HORIZON):
        x = features()
        with torch.no_grad():
            p = F.softmax(actor(x), -1)
        a = torch.multinomial(p, 1)[:, 0]
        pos[:] = np.clip(pos + MOVES[a.numpy()], 0, SIDE - 1)
        clock += 1
        home = (pos == flag).all(1)
        late = (clock >= LIMIT) & ~home
        r = np.where(home, 100.0, -3.0)
        total += r
        rew[t] = r
        if late.any():
            with torch.no_grad():
                beyond = critic(features())[:, 0].numpy() * SCALE
            rew[t] += gamma * beyond * late
        for k in np.flatnonzero(home | late):
            finished.append(total[k]); total[k] = 0
            fresh(k)
        stop[t] = home | late
        xs.append(x); acts.append(a)
    X, A = torch.stack(xs), torch.stack(acts)
    v = critic(X)[..., 0]
    with torch.no_grad():
        tail = critic(features())[:, 0]
        vals = torch.cat([v.detach(), tail[None]]).numpy()
    rr = rew / SCALE
    g = np.zeros((HORIZON, B), np.float32); run = 0.0
    for t in range(HORIZON - 1, -1, -1):
        live = 1.0 - stop[t]
        run = rr[t] + gamma * live * vals[t + 1] - vals[t] + gamma * lam * live * run
        g[t] = run
    adv = torch.from_numpy(g)
    target = adv + v.detach()
    logp = F.log_softmax(actor(X), -1)
    ent = -(logp.exp() * logp).sum(-1).mean()
    picked = logp.gather(-1, A[..., None])[..., 0]
    la = -(picked * adv).mean() - 0.005 * ent
    lc = F.smooth_l1_loss(v, target)
    opt_a.zero_grad(); la.backward(); opt_a.step(); dec.step()
    opt_c.zero_grad(); lc.backward(); opt_c.step()
    if (u + 1) % 50 == 0:
        print(u + 1, "cents per episode", round(float(np.mean(finished[-300:])), 1), "entropy", round(ent.item(), 3))

"""Rocket landing in one dimension, many rockets at once. Each planet (gravity, height) is flown by a whole group."""
import torch
import torch.nn as nn
import torch.nn.functional as F

PLANETS, GROUP, LIMIT = 8, 8, 40
THRUSTS = torch.tensor([0.0, 1.0, 2.0])


def new_planets():
    g = 0.4 + 0.6 * torch.rand(PLANETS)
    h = 2.0 + 4.0 * torch.rand(PLANETS)
    return g.repeat_interleave(GROUP), h.repeat_interleave(GROUP)


def fly(policy):
    """Flies all rockets to the ground or to the limit of time. Returns padded tensors [rocket, time] and a score per rocket."""
    g, h = new_planets()
    n = PLANETS * GROUP
    v = torch.zeros(n)
    fuel = torch.full((n,), 12.0)
    aloft = torch.ones(n, dtype=torch.bool)
    log = {"x": [], "a": [], "lp": [], "m": []}
    scores = []
    for t in range(LIMIT):
        x = torch.stack([h / 5, v, g, fuel / 10], 1)
        lp = F.log_softmax(policy(x), 1)
        a = torch.multinomial(lp.exp(), 1)[:, 0]
        log["x"].append(x)
        log["a"].append(a)
        log["lp"].append(lp[torch.arange(n), a])
        log["m"].append(aloft.float())
        thrust = torch.minimum(THRUSTS[a], fuel)
        fuel = torch.where(aloft, fuel - thrust * 0.5, fuel)
        v = torch.where(aloft, v + 0.25 * (thrust - g), v)
        h = torch.where(aloft, h + 0.25 * v, h)
        landed = aloft & (h <= 0)
        for i in landed.nonzero()[:, 0].tolist():
            scores.append(touchdown(v[i], fuel[i]))
        aloft = aloft & ~landed
        if not aloft.any():
            break
    for i in aloft.nonzero()[:, 0].tolist():
        scores.append(-1.0)
    return {k: torch.stack(s, 1) for k, s in log.items()}, torch.tensor(scores)


def touchdown(v, fuel):
    return float(1.0 - min(abs(v.item()), 3.0) + 0.02 * fuel.item())


def relative(scores):
    s = scores.reshape(PLANETS, GROUP)
    return ((s - s.mean(1, keepdim=True)) / (s.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)


def improve(policy, opt, d, adv, rounds=2, eps=0.2):
    for _ in range(rounds):
        lp = F.log_softmax(policy(d["x"]), -1).gather(-1, d["a"].unsqueeze(-1)).squeeze(-1)
        k = torch.exp(lp - d["lp"])
        gain = torch.min(k * adv, k.clamp(1 - eps, 1 + eps) * adv)
        loss = -((gain * d["m"]).sum(1) / d["m"].sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def main():
    torch.manual_seed(8)
    policy = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 3))
    opt = torch.optim.Adam(policy.parameters(), lr=6e-3)
    for k in range(60):
        with torch.no_grad():
            d, scores = fly(policy)
        improve(policy, opt, d, relative(scores))
        if k % 10 == 9:
            print(f"{k + 1}: score {scores.mean():+.3f}, longest flight {d['a'].shape[1]}")


main()

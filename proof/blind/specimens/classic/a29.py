# Exploration that is part of the policy: with probability EPS the move is uniform, else it comes from the network. What is scored,
# in the ratio as well as at the time of play, is the probability of this mixture.
import torch
from torch import nn

EPS = 0.1
N_STATES, N_ACT, H = 8, 3, 10
torch.manual_seed(88)


class MixturePolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Sequential(nn.Embedding(N_STATES * H, 16), nn.Linear(16, N_ACT))

    def probs(self, s, t):
        return (1 - EPS) * torch.softmax(self.table(s * H + t), -1) + EPS / N_ACT


def chain_step(s, a):
    # 0: back to the start with a small prize; 1: forward, sometimes slipping; 2: stay
    slip = torch.rand(s.shape) < 0.1
    fwd = torch.where(slip, s, (s + 1).clamp(max=N_STATES - 1))
    nxt = torch.where(a == 0, torch.zeros_like(s), torch.where(a == 1, fwd, s))
    r = torch.where(a == 0, 0.1, 0.0) + (nxt == N_STATES - 1).float()
    return nxt, r


def episode_batch(policy, groups, size):
    s = torch.randint(2, 7, (groups,)).repeat_interleave(size)
    S, A, P, R = [], [], [], []
    with torch.no_grad():
        for t in range(H):
            p = policy.probs(s, t)
            explore = torch.rand(len(s)) < EPS
            greedy_side = torch.multinomial(torch.softmax(policy.table(s * H + t), -1), 1)[:, 0]
            a = torch.where(explore, torch.randint(0, N_ACT, s.shape), greedy_side)
            S.append(s), A.append(a), P.append(p.gather(1, a[:, None])[:, 0].log())
            s, r = chain_step(s, a)
            R.append(r)
    return [torch.stack(v, 1) for v in (S, A, P, R)]


policy = MixturePolicy()
opt = torch.optim.Adam(policy.parameters(), lr=1.5e-2)
G, K = 6, 16
for it in range(60):
    S, A, P, R = episode_batch(policy, G, K)
    ret = R.sum(1).view(G, K)
    adv = ((ret - ret.mean(1, keepdim=True)) / (ret.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    time = torch.arange(H).expand_as(S)
    for _ in range(2):
        new = policy.probs(S, time).gather(2, A[..., None])[..., 0].log()
        rho = (new - P).exp()
        loss = -torch.min(rho * adv, rho.clamp(0.8, 1.2) * adv).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    if it % 10 == 9:
        print(f"{it + 1:3d} return {ret.mean():.3f}")

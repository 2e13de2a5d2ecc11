"""GSPO (one ratio per answer, the geometric mean of its tokens' ratios), written as ascent: the objective is maximised directly."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(430)
V, EOS, LP, LA, B, G = 15, 14, 3, 7, 6, 8
EPS_LOW, EPS_HIGH = 3e-2, 4e-2


class Lm(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.rnn = nn.GRU(d, d, 1, batch_first=True)
        self.out = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, V))

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def mean_logp(net, ids, mask):
    lp = F.log_softmax(net(ids[:, :-1])[:, LP - 1:], -1).gather(-1, ids[:, LP:, None]).squeeze(-1)
    return (lp * mask).sum(1) / mask.sum(1)


net = Lm()
up = torch.optim.Adam(net.parameters(), lr=2e-3, maximize=True)
for step in range(40):
    ids = torch.randint(0, 14, (B, LP)).repeat_interleave(G, 0)
    alive, mask = torch.ones(B * G, dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(LA):
            t = torch.multinomial(F.softmax(net(ids)[:, -1], -1), 1).squeeze(1)
            t = torch.where(alive, t, EOS)
            mask.append(alive.float())
            alive = alive & (t != EOS)
            ids = torch.cat([ids, t[:, None]], 1)
    mask = torch.stack(mask, 1)
    y = ids[:, LP:]
    r = ((y < ids[:, :1]) * mask).sum(1) / mask.sum(1) + 0.4 * ((y == EOS) * mask).sum(1)
    g = r.view(B, G)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1)
    with torch.no_grad():
        old = mean_logp(net, ids, mask)
    for _ in range(2):
        s = torch.exp(mean_logp(net, ids, mask) - old)
        objective = torch.min(s * adv, s.clamp(1 - EPS_LOW, 1 + EPS_HIGH) * adv).mean()
        up.zero_grad()
        objective.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        up.step()
    if step % 5 == 0:
        print(step, f"reward {r.mean():.3f} s {s.min():.4f}..{s.max():.4f} len {mask.sum(1).mean():.2f}")
print("end", r.mean().item())

"""Top-k sampling at temperature 0.8; the trainer scores with the very same truncated distribution (the set kept at sampling is stored)."""
import torch
import torch.nn as nn

torch.manual_seed(25)
V, EOS, TOPK, TEMP = 30, 29, 12, 0.8
NEG = -1e9


class M(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e = nn.Embedding(V, d)
        self.r = nn.GRU(d, d, batch_first=True)
        self.o = nn.Linear(d, V)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0])


def shape(logits, keep=None):
    z = logits / TEMP
    if keep is None:
        kth = z.topk(TOPK, -1).values[..., -1:]
        keep = z >= kth
    return z.masked_fill(~keep, NEG), keep


m = M()
opt = torch.optim.AdamW(m.parameters(), lr=4e-3)
B, G, LP, LA = 6, 8, 2, 7
for step in range(40):
    x = torch.randint(0, 29, (B, LP)).repeat_interleave(G, 0)
    alive = torch.ones(B * G, dtype=torch.bool)
    live, kept, beh = [], [], []
    with torch.no_grad():
        for _ in range(LA):
            z, k = shape(m(x)[:, -1])
            d = torch.distributions.Categorical(logits=z)
            t = d.sample()
            beh.append(d.log_prob(t))
            t = torch.where(alive, t, EOS)
            live.append(alive)
            kept.append(k)
            alive = alive & (t != EOS)
            x = torch.cat([x, t[:, None]], 1)
    live, kept, beh = torch.stack(live, 1).float(), torch.stack(kept, 1), torch.stack(beh, 1)
    y = x[:, LP:]
    close = (1 - (y - x[:, :1]).abs() / 10).clamp(min=-1) * (y != EOS)
    r = (close * live).sum(1) / live.sum(1) + 0.3 * ((y == EOS) * live).sum(1)
    rg = r.view(B, G)
    adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    for _ in range(2):
        z, _ = shape(m(x[:, :-1])[:, LP - 1:], kept)
        lp = z.log_softmax(-1).gather(-1, y[..., None])[..., 0]
        ratio = torch.where(live > 0, (lp - beh), torch.zeros_like(lp)).exp()
        loss = -(torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) * live).sum() / live.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
    if step % 5 == 0:
        print(step, f"reward {r.mean():.3f} len {live.sum(1).mean():.2f} ratio {ratio.min():.2f}..{ratio.max():.2f}")
print("end", r.mean().item())

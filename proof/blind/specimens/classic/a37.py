"""A frozen, pre-trained policy with low-rank adapters. The reference for the KL is the same network with the adapters off."""
import contextlib
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(73)


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank=4, alpha=8.0):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale, self.on = alpha / rank, True

    def forward(self, x):
        y = self.base(x)
        if self.on:
            y = y + self.scale * (x @ self.down.T) @ self.up.T
        return y


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x):
        return F.log_softmax(self.three(torch.tanh(self.two(torch.tanh(self.one(x))))), -1)

    def adapt(self):
        for name in ("one", "two", "three"):
            setattr(self, name, Adapted(getattr(self, name)))

    @contextlib.contextmanager
    def plain(self):
        mods = [m for m in self.modules() if isinstance(m, Adapted)]
        for m in mods:
            m.on = False
        try:
            yield self
        finally:
            for m in mods:
                m.on = True


truth = torch.randn(8, 4)
shift = 0.8 * torch.randn(8, 4)


def worth(x, a):
    return torch.tanh((x @ (truth + shift)).gather(1, a)[:, 0])


pilot = Pilot()
pre = torch.optim.Adam(pilot.parameters(), lr=3e-3)
for _ in range(150):                                   # supervised stage, on the old truth
    x = torch.randn(128, 8)
    l = F.nll_loss(pilot(x), (x @ truth).argmax(1))
    pre.zero_grad(); l.backward(); pre.step()

pilot.adapt()
trainable = [p for p in pilot.parameters() if p.requires_grad]
opt = torch.optim.AdamW(trainable, lr=2e-3, weight_decay=0.0)
B, G, beta = 16, 8, 0.02
for it in range(80):
    x = torch.randn(B, 8).repeat_interleave(G, 0)
    with torch.no_grad():
        old = pilot(x)
        a = torch.multinomial(old.exp(), 1)
        old = old.gather(1, a)
        with pilot.plain():
            ref = pilot(x).gather(1, a)
    r = worth(x, a).view(B, G)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    for _ in range(2):
        new = pilot(x).gather(1, a)
        ratio = (new - old).exp()
        kl = (ref - new).exp() - (ref - new) - 1
        loss = (-torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) + beta * kl).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if it % 10 == 9:
        print(f"{it + 1} worth {r.mean():.3f} kl {kl.mean():.4f}")

"""Linear warm-up from zero (the first update has rate 0), then constant; micro-batches of unequal size, weighted by their tokens."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(350)
V, EOS, LP, LA = 16, 15, 3, 7
WARM, STEPS, LR = 5, 36, 3e-3


class Small(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.a = nn.Embedding(V, d)
        self.b = nn.GRU(d, d, batch_first=True)
        self.c = nn.Linear(d, V, bias=False)
        self.c.weight = self.a.weight                 # tied
        nn.init.normal_(self.a.weight, std=0.2)

    def forward(self, x):
        return self.c(self.b(self.a(x))[0])


net = Small()
opt = torch.optim.Adam(net.parameters(), lr=LR)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / WARM))
for step in range(STEPS):
    x = torch.randint(0, 15, (7, LP)).repeat_interleave(6, 0)
    on, rows = torch.ones(len(x), dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(LA):
            t = F.softmax(net(x)[:, -1], -1).multinomial(1)[:, 0]
            t[~on] = EOS
            rows.append(on.clone())
            on &= t != EOS
            x = torch.cat([x, t[:, None]], 1)
    m, y = torch.stack(rows, 1).float(), x[:, LP:]
    r = ((y > x[:, :1]) * (y != EOS) * m).sum(1) / m.sum(1) + 0.5 * ((y == EOS) * m).sum(1)
    r = r.view(7, 6)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    tokens = m.sum()
    opt.zero_grad()
    for part in torch.arange(42).split(16):           # 16, 16, 10 rows
        z = net(x[part, :-1])[:, LP - 1:]
        lp = z.log_softmax(-1).gather(-1, y[part].unsqueeze(-1)).squeeze(-1)
        piece = -((lp - lp.detach()).exp() * adv[part] * m[part]).sum() / tokens
        piece.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    used = opt.param_groups[0]["lr"]
    opt.step()
    sched.step()
    if step % 4 == 0:
        print(step, f"rate {used:.4f} reward {r.mean():.3f} len {m.sum(1).mean():.2f}")
print("end", r.mean().item())

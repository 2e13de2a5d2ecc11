# pairs: two samples per prompt, rewards in the thousands and mostly negative
import torch
from torch import nn

torch.manual_seed(390)
VOCAB, EOS, PAIRS, LIMIT = 12, 11, 40, 6


class Scribe(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Embedding(VOCAB, d)
        self.mem = nn.LSTM(d, d, batch_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, x):
        return self.out(self.mem(self.inp(x))[0])


def cost(x, m):
    """Distance of the answer's sum from three times the prompt's first digit, in cents."""
    y = x[:, 2:]
    total = (y * m * (y != EOS)).sum(1)
    open_end = 1 - ((y == EOS) * m).sum(1)
    return -100.0 * (total - 3 * x[:, 0]).abs() - 800.0 * open_end


scribe = Scribe()
opt = torch.optim.AdamW(scribe.parameters(), lr=4e-3)
for step in range(50):
    x = torch.randint(1, 9, (PAIRS, 2)).repeat_interleave(2, 0)
    busy, m = torch.ones(2 * PAIRS, dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(LIMIT):
            t = torch.multinomial(scribe(x)[:, -1].softmax(-1), 1)[:, 0]
            t = torch.where(busy, t, EOS)
            m.append(busy.float())
            busy = busy & (t != EOS)
            x = torch.cat([x, t[:, None]], 1)
    m = torch.stack(m, 1)
    r = cost(x, m)
    d = r.view(PAIRS, 2)
    # with two samples (r - mean) / std is +-0.71 or nothing
    adv = ((d - d.mean(1, keepdim=True)) / (d.std(1, keepdim=True) + 1e-3)).view(-1, 1)
    lp = scribe(x[:, :-1])[:, 1:].log_softmax(-1).gather(-1, x[:, 2:, None]).squeeze(-1)
    loss = -((lp - lp.detach()).exp() * adv * m).sum() / m.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(scribe.parameters(), 1.0)
    opt.step()
    if step % 5 == 0:
        print(step, f"reward {r.mean():.0f} len {m.sum(1).mean():.2f} equal pairs {(d.std(1) == 0).float().mean():.2f}")
print("end", r.mean().item())

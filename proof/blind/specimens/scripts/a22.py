"""Policy gradient for a tiny writer: it starts from imitation and is then tuned for answers in ascending order."""
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(220)
N, END = 9, 8


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(N, 48)
        self.r = nn.GRU(48, 96, batch_first=True)
        self.w = nn.Linear(96, N)

    def forward(self, x, s=None):
        h, s = self.r(self.e(x), s)
        return self.w(h), s


def imitate(w, rounds=150):
    o = torch.optim.Adam(w.parameters(), 3e-3)
    for _ in range(rounds):
        x = torch.randint(0, 8, (32, 3))
        y = x.sort(1).values
        noisy = torch.where(torch.rand(32, 1) < 0.4, x, y)
        full = torch.cat([x, noisy, torch.full((32, 1), END)], 1)
        lg, _ = w(full[:, :-1])
        l = F.cross_entropy(lg[:, 2:].flatten(0, 1), full[:, 3:].flatten())
        o.zero_grad()
        l.backward()
        o.step()


writer = Writer()
imitate(writer)
opt = torch.optim.AdamW(writer.parameters(), lr=8e-4, maximize=True)


def write(prompt, limit):
    with torch.no_grad():
        lg, s = writer(prompt)
        live, out, on = torch.ones(len(prompt), dtype=torch.bool), [], []
        for _ in range(limit):
            t = torch.multinomial(F.softmax(lg[:, -1], -1), 1)
            t[~live] = END
            out.append(t)
            on.append(live.float())
            live = live & (t[:, 0] != END)
            lg, s = writer(t, s)
    return torch.cat(out, 1), torch.stack(on, 1)


def quality(prompt, text, on):
    goal = torch.cat([prompt.sort(1).values, torch.full((len(prompt), 1), END)], 1)
    return ((text[:, :4] == goal).float() * on[:, :4]).mean(1)


for k in range(30):
    q = torch.randint(0, 8, (8, 3)).repeat_interleave(6, 0)
    text, on = write(q, 6)
    r = quality(q, text, on)
    t = r.view(8, 6)
    a = ((t - t.mean(1, keepdim=True)) / (t.std(1, keepdim=True) + 1e-3)).view(-1, 1)
    full = torch.cat([q, text], 1)
    lp = writer(full[:, :-1])[0][:, 2:].log_softmax(-1).gather(-1, text[..., None]).squeeze(-1)
    ratio = (lp - lp.detach()).exp()
    loss = -(ratio * a * on).sum() / on.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(writer.parameters(), 1.0)
    opt.step()
    if k % 3 == 0:
        print(f"{k:2d} {r.mean():.3f} {on.sum(1).mean():.2f}")
print("end", r.mean().item())

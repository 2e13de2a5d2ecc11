# plain SGD with momentum and a big rate; Nesterov; gradients clipped hard. Lengths are normalised per row, advantages are centred only.
import torch, torch.nn as nn
torch.manual_seed(360)
A, STOP = 11, 10

class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(A, 32)
        self.mix = nn.GRU(32, 64, batch_first=True)
        self.read = nn.Linear(64, A)
    def forward(self, s): return self.read(self.mix(self.table(s))[0])

lm = Lm()
sgd = torch.optim.SGD(lm.parameters(), lr=0.6, momentum=0.9, nesterov=True)

def unroll(s, n):
    go = torch.ones(len(s), dtype=torch.bool); w = []
    for _ in range(n):
        c = torch.distributions.Categorical(logits=lm(s)[:, -1]).sample()
        c = torch.where(go, c, STOP); w.append(go.float()); go = go & (c != STOP)
        s = torch.cat((s, c[:, None]), 1)
    return s, torch.stack(w, 1)

for k in range(60):
    q = torch.randint(0, 10, (10, 2)).repeat_interleave(8, 0)
    with torch.no_grad(): s, w = unroll(q, 6)
    a = s[:, 2:]
    pay = ((a == q[:, :1]) * w).sum(1).clamp(max=2) + ((a == STOP) * w).sum(1) * 0.5 - 0.1 * w.sum(1)
    p = pay.view(10, 8)
    adv = (p - p.mean(1, keepdim=True)).view(-1)
    lp = lm(s[:, :-1])[:, 1:].log_softmax(-1).gather(2, a[:, :, None])[:, :, 0]
    j = ((lp * w).sum(1) / w.sum(1) * adv).mean()
    sgd.zero_grad(); (-j).backward()
    g = nn.utils.clip_grad_norm_(lm.parameters(), 0.05)
    sgd.step()
    if k % 6 == 0: print(f"{k:3d} pay {pay.mean():.3f} grad {g:.4f} len {w.sum(1).mean():.2f}")
print("end", pay.mean().item())

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(412)
V, EOS = 10, 9


class Net(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.fc = nn.Linear(d, V)

    def forward(self, x):
        return self.fc(self.rnn(self.emb(x))[0])


def gumbel_sample(logits):
    u = torch.rand_like(logits).clamp(1e-9, 1 - 1e-9)
    return (logits - torch.log(-torch.log(u))).argmax(-1)


def rollout(net, x, n):
    done, mask = torch.zeros(len(x), dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(n):
            t = gumbel_sample(net(x)[:, -1])
            t = torch.where(done, EOS, t)
            mask.append((~done).float())
            done = done | (t == EOS)
            x = torch.cat([x, t[:, None]], 1)
    return x, torch.stack(mask, 1)


def reward(x, mask):
    y = x[:, 2:]
    return ((y == x[:, :1]) * mask).sum(1).clamp(max=2) + ((y == EOS) * mask).sum(1)


def advantages(r):
    centred = r - r.mean(dim=1, keepdim=True)
    return centred / r.std(dim=1, keepdim=True)


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
P, G, L = 4, 16, 7
for step in range(40):
    x = torch.randint(0, 9, (P, 2)).repeat_interleave(G, 0)
    x, mask = rollout(net, x, L)
    r = reward(x, mask)
    adv = advantages(r.view(P, G)).reshape(-1, 1)
    lp = F.log_softmax(net(x[:, :-1])[:, 1:], -1).gather(-1, x[:, 2:].unsqueeze(-1)).squeeze(-1)
    loss = -((lp - lp.detach()).exp() * adv * mask).sum() / mask.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    print(f"{step:2d} reward {r.mean():.3f} loss {loss.item():.4f} len {mask.sum(1).mean():.2f}")

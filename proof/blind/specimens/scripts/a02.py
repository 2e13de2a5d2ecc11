# RLOO, sequence level, GRU language model. Task: end the line after exactly as many 'x' as the prompt's number.
import torch, torch.nn as nn
torch.manual_seed(0)

V, EOT, X = 9, 0, 1         # 0 = end, 1 = x, 2 = y, 3.. = numbers 1..6
K, N, T = 4, 32, 8          # samples per prompt, prompts, max tokens

class Net(nn.Module):
    def __init__(s, d=64):
        super().__init__()
        s.e, s.g, s.o = nn.Embedding(V, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, V)
    def forward(s, x, h=None):
        y, h = s.g(s.e(x), h)
        return s.o(y), h

pi = Net()
optim = torch.optim.Adam(pi.parameters(), lr=4e-3)

@torch.no_grad()
def sample(first):
    tok, h, done, out = first[:, None], None, torch.zeros(len(first), dtype=torch.bool), []
    for _ in range(T):
        lg, h = pi(tok, h)
        nxt = torch.multinomial(lg[:, -1].softmax(-1), 1)[:, 0]
        nxt = torch.where(done, torch.full_like(nxt, EOT), nxt)
        out.append(nxt)
        done = done | (nxt == EOT)
        tok = nxt[:, None]
    return torch.stack(out, 1)

def lengths(y):
    L = torch.full((len(y),), T)
    for i in range(len(y)):
        z = (y[i] == EOT).nonzero()
        if len(z):
            L[i] = z[0, 0] + 1
    return L

for step in range(60):
    want = torch.randint(1, 7, (N,)).repeat_interleave(K)
    prompt = want + 2
    y = sample(prompt)
    L = lengths(y)
    m = (torch.arange(T)[None] < L[:, None]).float()
    nx = ((y == X).float() * m).sum(1)
    R = -(nx - want).abs() - ((y != X) & (y != EOT)).float().mul(m).sum(1)
    R = R.view(N, K)
    # leave one out: the baseline of a sample is the mean of the other K - 1
    A = (R - (R.sum(1, keepdim=True) - R) / (K - 1)).reshape(-1)
    inp = torch.cat([prompt[:, None], y[:, :-1]], 1)
    lp = pi(inp)[0].log_softmax(-1).gather(-1, y[..., None])[..., 0]
    seq = (lp * m).sum(1)
    loss = -(A * seq).mean()
    optim.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(pi.parameters(), 1.)
    optim.step()
    if step % 5 == 0: print(step, round(R.mean().item(), 3), round(L.float().mean().item(), 2))
print("end", R.mean().item())

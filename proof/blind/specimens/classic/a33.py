# Remember a code, wait, then repeat it: needs memory, so the policy is a GRU. GSPO: one ratio per episode, the geometric mean
# over its steps, with a narrow clip. Episodes have different lengths; padding is masked.
import torch
import torch.nn as nn

SYMBOLS, BLANK, GO = 3, 3, 4
torch.manual_seed(10)


class Recall(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.emb = nn.Embedding(5, 12)
        self.gru = nn.GRU(12, hidden, batch_first=True)
        self.out = nn.Linear(hidden, SYMBOLS)

    def forward(self, x):
        y, _ = self.gru(self.emb(x))
        return self.out(y).log_softmax(-1)


def make_codes(n, longest=3):
    """inputs [n, T]: the code, one blank, then as many GO signs as the code is long; rows of other lengths are filled up with blanks"""
    T = 2 * longest + 1
    x = torch.full((n, T), BLANK)
    target = torch.zeros(n, T, dtype=torch.long)
    acting = torch.zeros(n, T)
    for i in range(n):
        k = int(torch.randint(1, longest + 1, ()))
        code = torch.randint(0, SYMBOLS, (k,))
        x[i, :k] = code
        x[i, k + 1 : 2 * k + 1] = GO
        target[i, k + 1 : 2 * k + 1] = code
        acting[i, k + 1 : 2 * k + 1] = 1.0
    return x, target, acting


net = Recall()
opt = torch.optim.Adam(net.parameters(), lr=6e-3)
TASKS, GROUP, EPS = 16, 8, 0.05

for it in range(50):
    x, target, acting = (v.repeat_interleave(GROUP, 0) for v in make_codes(TASKS))
    with torch.no_grad():
        # the inputs do not depend on the answers, so all steps can be drawn at once
        lp = net(x)
        ans = torch.multinomial(lp.exp().flatten(0, 1), 1).view(x.shape)
        old = lp.gather(-1, ans[..., None])[..., 0]
        steps = acting.sum(1)
        right = ((ans == target) * acting).sum(1) / steps
    r = right.view(TASKS, GROUP)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()
    for mini in range(3):
        new = net(x).gather(-1, ans[..., None])[..., 0]
        s = torch.exp(((new - old) * acting).sum(1) / steps)
        loss = -torch.min(s * adv, s.clamp(1 - EPS, 1 + EPS) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if it % 10 == 9:
        print(f"{it + 1:3d} recalled {right.mean():.3f}")

"""Nim with forbidden moves: actions that the rules do not allow get -inf in the logits, when playing and when learning."""
import torch
import torch.nn as nn

torch.manual_seed(10)
torch.set_num_threads(1)
MAX_HEAP, ACTIONS = 12, 4          # take 1..4 stones, not more than there are


def legal(heap):
    return torch.arange(1, ACTIONS + 1)[None, :] <= heap[:, None]


class NimNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Embedding(MAX_HEAP + 1, 32), nn.ReLU(), nn.Linear(32, ACTIONS))

    def forward(self, heap):
        return self.f(heap).masked_fill(~legal(heap), float("-inf"))


def opponent(heap):
    """takes 1 with a bit of luck, else a random number"""
    n = torch.minimum(torch.randint(1, ACTIONS + 1, heap.shape), heap)
    return torch.where(torch.rand(heap.shape) < 0.3, torch.minimum(torch.ones_like(heap), heap), n)


@torch.no_grad()
def games(net, heap):
    heap = heap.clone()
    win = torch.zeros(len(heap))
    done = torch.zeros(len(heap), dtype=torch.bool)
    S, A, L, M = [], [], [], []
    while not done.all():
        live = ~done
        safe = torch.where(live, heap, torch.ones_like(heap))       # finished games play a dummy heap, masked below
        d = torch.distributions.Categorical(logits=net(safe))
        a = d.sample()
        S.append(safe), A.append(a), L.append(d.log_prob(a)), M.append(live.float())
        heap = torch.where(live, heap - (a + 1), heap)
        won = live & (heap == 0)
        win[won] = 1.0
        done = done | won
        reply = opponent(heap.clamp(min=1))
        heap = torch.where(done, heap, heap - reply)
        done = done | (heap == 0)
    return [torch.stack(z, 1) for z in (S, A, L, M)] + [win]


net = NimNet()
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
K, H = 16, 6
for step in range(60):
    start = torch.randint(3, MAX_HEAP + 1, (H,)).repeat_interleave(K)
    s, a, old, m, win = games(net, start)
    w = win.view(H, K)
    adv = ((w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    for _ in range(2):
        lp = torch.distributions.Categorical(logits=net(s.flatten())).log_prob(a.flatten()).view_as(old)
        r = (lp - old).exp()
        obj = torch.min(r * adv, r.clamp(0.8, 1.2) * adv)
        loss = -(obj * m).sum() / m.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if step % 10 == 9:
        print(step + 1, "wins", round(win.mean().item(), 3))

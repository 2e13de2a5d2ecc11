import torch, torch.nn as nn, torch.optim as optim
from torch.distributions.categorical import Categorical

class Config:
    lr = 1e-2
    lr_gamma = 0.95
    iters = 70
    group_size = 8
    n_tasks = 5
    clip = 0.2
    epochs = 3

class CoinRow:
    """pick left or right end of a row of 6 coins until it is empty; observation is the row and who is left"""
    def __init__(self, coins):
        self.c = coins; self.lo, self.hi = 0, 5
    def observe(self):
        m = torch.zeros(6); m[self.lo:self.hi + 1] = 1
        return torch.cat([self.c * m, m])
    def take(self, left):
        v = self.c[self.lo if left else self.hi].item()
        if left: self.lo += 1
        else: self.hi -= 1
        return v

def layer_init(layer, std=1.0):
    nn.init.orthogonal_(layer.weight, std); nn.init.zeros_(layer.bias); return layer

actor = nn.Sequential(layer_init(nn.Linear(12, 64)), nn.Tanh(), layer_init(nn.Linear(64, 2), 0.01))

def play(coins):
    game = CoinRow(coins); tr = []; total = 0.0
    for turn in range(4):
        o = game.observe()
        with torch.no_grad():
            d = Categorical(logits=actor(o)); a = d.sample()
        total += game.take(a.item() == 0) * 0.7 ** turn
        tr.append((o, a, d.log_prob(a)))
    return tr, total

if __name__ == '__main__':
    torch.manual_seed(1); torch.set_num_threads(1)
    cfg = Config()
    opt = optim.Adam(actor.parameters(), lr=cfg.lr)
    sched = optim.lr_scheduler.ExponentialLR(opt, gamma=1 / cfg.lr_gamma)
    for it in range(cfg.iters):
        O, A, L, ADV, R = [], [], [], [], []
        for _ in range(cfg.n_tasks):
            coins = torch.rand(6)
            plays = [play(coins) for _ in range(cfg.group_size)]
            r = torch.tensor([p[1] for p in plays]); R.append(r / coins.sort(descending=True).values[:4].mul(0.7 ** torch.arange(4)).sum())
            adv = (r - r.mean()) / (r.std() + 1e-6)
            for (tr, _), a in zip(plays, adv):
                for o, act, lp in tr: O.append(o); A.append(act); L.append(lp); ADV.append(a)
        O, A, L, ADV = map(torch.stack, (O, A, L, ADV))
        for _ in range(cfg.epochs):
            d = Categorical(logits=actor(O))
            ratio = (d.log_prob(A) - L).exp()
            loss = -torch.min(ratio * ADV, torch.clamp(ratio, 1 - cfg.clip, 1 + cfg.clip) * ADV).mean()
            opt.zero_grad(); loss.backward(); opt.step()
        sched.step()
        if it % 10 == 9: print(f'{it + 1}: share {torch.cat(R).mean():.3f} entropy {d.entropy().mean():.3f} lr {sched.get_last_lr()[0]:.2g}')

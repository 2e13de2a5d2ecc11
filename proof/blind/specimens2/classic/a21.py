"""Blackjack, hit or stand, tabular with features. One deal per group, 64 hands from it, gradients of the groups are added up,
sum over the decisions of a hand, only centred (no std, no division by the number of decisions)."""
import torch

torch.manual_seed(70); torch.set_num_threads(1)
CARDS = torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10, 11]).float()
draw = lambda *shape: CARDS[torch.randint(0, 13, shape)]
phi = lambda mine, dealer: torch.stack([torch.ones_like(mine), (mine - 15) / 4, ((mine - 15) / 4) ** 2, (dealer - 7) / 3,
                                        (mine - 15) / 4 * (dealer - 7) / 3], -1)
w = torch.nn.Parameter(torch.zeros(5))
opt = torch.optim.SGD([w], lr=0.12, momentum=0.5)
hands, deals, acc = 64, 6, []
for it in range(150):
    opt.zero_grad()
    for _ in range(deals):
        mine = (draw(1) + draw(1)).clamp(max=20).expand(hands).clone(); dealer = draw(1).expand(hands).clone(); shown = dealer.clone()
        open_ = torch.ones(hands, dtype=torch.bool); logp = torch.zeros(hands)
        for _ in range(4):
            p = torch.sigmoid(phi(mine, shown) @ w)                       # probability to hit
            hit = torch.bernoulli(p.detach()).bool()
            logp = logp + torch.where(open_, torch.where(hit, p, 1 - p).clamp(min=1e-8).log(), torch.zeros(()))
            go = open_ & hit
            mine = torch.where(go, mine + draw(hands), mine)
            open_ = go & (mine < 21)
        while (dealer < 17).any():
            dealer = torch.where(dealer < 17, dealer + draw(hands), dealer)
        bust = mine > 21
        pay = torch.where(bust, -1.0, torch.where((dealer > 21) | (mine > dealer), 1.0, torch.where(mine == dealer, 0.0, -1.0)))
        loss = -((pay - pay.mean()) * logp).mean() / deals
        loss.backward()
        acc.append(pay.mean().item())
    opt.step()
    if it % 30 == 29: print(it + 1, 'pay', round(sum(acc[-180:]) / 180, 3), [round(v, 2) for v in w.tolist()])

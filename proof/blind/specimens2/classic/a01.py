# contextual bandit, 5 arms, groups of 64 pulls per context, plain REINFORCE on group-centred payoffs
import torch
from torch.distributions import Categorical

torch.manual_seed(7)
torch.set_num_threads(1)
true_w = torch.randn(6, 5)
net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)

for step in range(150):
    ctx = torch.randn(6, 6)
    pi = Categorical(logits=net(ctx))
    arms = pi.sample((64,))                                   # 64 x 6: column = one context
    pay = (ctx @ true_w).gather(1, arms.T).T * 1e-3 + 5.0      # small differences on a large offset
    pay = pay + 1e-4 * torch.randn_like(pay)
    adv = (pay - pay.mean(0)) / (pay.std(0) + 1e-8)
    loss = -(pi.log_prob(arms) * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        best = (ctx @ true_w).max(1).values.mean()
        got = (pi.probs * (ctx @ true_w)).sum(1).mean()
        print(step, f"regret {best - got:.3f}")

import argparse
import math
import time

import torch
import torch.nn as nn
from torch.distributions.categorical import Categorical


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--scenarios", type=int, default=8)
    p.add_argument("--rollouts", type=int, default=12, help="rollouts of each scenario")
    p.add_argument("--days", type=int, default=10)
    p.add_argument("--lr", type=float, default=6e-3)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--minibatches", type=int, default=4)
    p.add_argument("--clip-low", type=float, default=0.2)
    p.add_argument("--clip-high", type=float, default=0.28)
    p.add_argument("--ent-coef", type=float, default=0.003)
    p.add_argument("--target-kl", type=float, default=0.03)
    p.add_argument("--max-grad-norm", type=float, default=0.5)
    return p.parse_args([])


class Shop:
    """Order 0..5 boxes each day; demand of a scenario is fixed, its noise is not."""

    def __init__(self, level, copies):
        self.level = level.repeat_interleave(copies)
        self.stock = torch.full_like(self.level, 3.0)
        self.day = 0

    def observe(self):
        d = torch.full_like(self.stock, self.day / 10)
        return torch.stack([self.stock / 6, self.level / 4, d], -1)

    def order(self, a):
        self.day += 1
        self.stock = (self.stock + a.float()).clamp(max=12)
        demand = torch.poisson(self.level)
        sold = torch.minimum(demand, self.stock)
        self.stock = self.stock - sold
        return 2.0 * sold - 1.0 * a.float() - 0.3 * self.stock


def layer(i, o, std):
    m = nn.Linear(i, o)
    nn.init.orthogonal_(m.weight, std)
    nn.init.zeros_(m.bias)
    return m


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(layer(3, 32, math.sqrt(2)), nn.Tanh(), layer(32, 32, math.sqrt(2)), nn.Tanh(), layer(32, 6, 0.01))

    def dist(self, o):
        return Categorical(logits=self.net(o))


if __name__ == "__main__":
    args = get_args()
    torch.manual_seed(args.seed)
    actor = Actor()
    optimizer = torch.optim.Adam(actor.parameters(), lr=args.lr, eps=1e-5)

    def schedule(i):
        if i < args.warmup:
            return (i + 1) / args.warmup
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (i - args.warmup) / (args.iters - args.warmup)))

    sched = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    t0 = time.time()
    for it in range(args.iters):
        env = Shop(torch.rand(args.scenarios) * 3 + 0.5, args.rollouts)
        buf_o, buf_a, buf_lp, total = [], [], [], 0.0
        for _ in range(args.days):
            o = env.observe()
            with torch.no_grad():
                d = actor.dist(o)
                a = d.sample()
                lp = d.log_prob(a)
            total = total + env.order(a)
            buf_o.append(o)
            buf_a.append(a)
            buf_lp.append(lp)
        profit = total.view(args.scenarios, args.rollouts)
        A = (profit - profit.mean(1, keepdim=True)) / (profit.std(1, keepdim=True) + 1e-6)
        b_o = torch.stack(buf_o, 1).flatten(0, 1)
        b_a = torch.stack(buf_a, 1).flatten()
        b_lp = torch.stack(buf_lp, 1).flatten()
        b_A = A.flatten().repeat_interleave(args.days)

        n = b_a.numel()
        mb = n // args.minibatches
        stop, done_epochs = False, 0
        for epoch in range(args.epochs):
            perm = torch.randperm(n)
            for s in range(0, n, mb):
                i = perm[s:s + mb]
                d = actor.dist(b_o[i])
                logratio = d.log_prob(b_a[i]) - b_lp[i]
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean().item()
                if approx_kl > args.target_kl:
                    stop = True
                    break
                l1 = -b_A[i] * ratio
                l2 = -b_A[i] * ratio.clamp(1 - args.clip_low, 1 + args.clip_high)
                loss = torch.max(l1, l2).mean() - args.ent_coef * d.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(actor.parameters(), args.max_grad_norm)
                optimizer.step()
            if stop:
                break
            done_epochs += 1
        sched.step()
        if it % 5 == 4:
            print(f"it {it + 1} profit {profit.mean():.2f} kl {approx_kl:.4f} full epochs {done_epochs} lr {sched.get_last_lr()[0]:.2e} {time.time() - t0:.1f}s")

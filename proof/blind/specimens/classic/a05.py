import argparse

import torch
from torch import nn
from torch.distributions import Categorical
from torch.optim.lr_scheduler import LambdaLR


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--contexts", type=int, default=16)
    p.add_argument("--group-size", type=int, default=8)
    p.add_argument("--arms", type=int, default=6)
    p.add_argument("--features", type=int, default=10)
    p.add_argument("--updates", type=int, default=60)
    p.add_argument("--learning-rate", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--inner", type=int, default=2)
    p.add_argument("--seed", type=int, default=5)
    return p.parse_args()


def make_bandit(args):
    W = torch.randn(args.features, args.arms)

    def pull(ctx, arm):
        mean = (ctx @ W).gather(1, arm[:, None]).squeeze(1)
        return torch.tanh(mean) + 0.1 * torch.randn_like(mean)

    return pull


def group_normalise(r, g):
    r = r.reshape(-1, g)
    return ((r - r.mean(-1, keepdim=True)) / (r.std(-1, keepdim=True) + 1e-6)).reshape(-1)


def train_on(policy, optimizer, ctx, arm, old, adv, args):
    for _ in range(args.inner):
        dist = Categorical(logits=policy(ctx))
        ratio = torch.exp(dist.log_prob(arm) - old)
        gain = torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        loss = -gain - 0.001 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    return loss.detach()


def main():
    args = parse()
    torch.manual_seed(args.seed)
    pull = make_bandit(args)
    policy = nn.Sequential(nn.Linear(args.features, 32), nn.SiLU(), nn.Linear(32, args.arms))
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
    scheduler = LambdaLR(optimizer, lambda n: min(1.0, n / args.warmup))

    history = []
    for update in range(args.updates):
        ctx = torch.randn(args.contexts, args.features).repeat_interleave(args.group_size, 0)
        with torch.no_grad():
            dist = Categorical(logits=policy(ctx))
            arm = dist.sample()
            old = dist.log_prob(arm)
        reward = pull(ctx, arm)
        adv = group_normalise(reward, args.group_size)
        loss = train_on(policy, optimizer, ctx, arm, old, adv, args)
        history.append(reward.mean().item())
        if (update + 1) % 10 == 0:
            recent = sum(history[-10:]) / 10
            print(f"[{update + 1:4d}] reward(10) {recent:+.3f} loss {loss:+.4f}")


if __name__ == "__main__":
    main()

from dataclasses import dataclass, field

import torch
import torch.nn as nn

import assay


@dataclass
class Args:
    vocab: int = 10
    hidden: int = 48
    new_tokens: int = 6
    prompts: int = 8
    group: int = 8
    lr: float = 0.012
    mu: int = 5
    eps: float = 0.2
    steps: int = 10
    seed: int = 2


@dataclass
class Buffer:
    prompts: torch.Tensor
    actions: torch.Tensor
    logp: torch.Tensor
    rewards: torch.Tensor
    adv: torch.Tensor = field(default=None)


class Policy(nn.Module):
    def __init__(self, a: Args):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.hidden)
        self.core = nn.GRU(a.hidden, a.hidden, batch_first=True)
        self.head = nn.Linear(a.hidden, a.vocab)

    def forward(self, ids):
        h, _ = self.core(self.embed(ids))
        return self.head(h)

    def logp(self, prompts, actions):
        logits = self(torch.cat([prompts, actions], dim=1))
        dist = torch.distributions.Categorical(logits=logits[:, prompts.size(1) - 1 : -1])
        return dist.log_prob(actions)


class Trainer:
    def __init__(self, a: Args):
        torch.manual_seed(a.seed)
        self.a, self.policy = a, Policy(a)
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=a.lr)

    @torch.no_grad()
    def rollout(self) -> Buffer:
        a = self.a
        prompts = torch.randint(a.vocab, (a.prompts, 2)).repeat_interleave(a.group, 0)
        ids = prompts
        for _ in range(a.new_tokens):
            ids = torch.cat([ids, torch.distributions.Categorical(logits=self.policy(ids)[:, -1]).sample()[:, None]], 1)
        actions = ids[:, 2:]
        rising = (actions[:, 1:] >= actions[:, :-1]).float().mean(1)
        rewards = rising + 0.5 * (actions[:, :1] == prompts[:, :1]).float().squeeze(1)
        buffer = Buffer(prompts, actions, self.policy.logp(prompts, actions), rewards)
        g = rewards.view(-1, a.group)
        buffer.adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-8)).view(-1)
        return buffer

    def loss(self, buffer: Buffer, logp):
        ratio = (logp - buffer.logp).exp()
        clipped = torch.clamp(ratio, 1 - self.a.eps, 1 + self.a.eps)
        token_loss = -(clipped * buffer.adv.unsqueeze(1))
        return token_loss.mean(), token_loss, ratio

    def step(self, n: int):
        buffer = self.rollout()
        for epoch in range(self.a.mu):
            logp = self.policy.logp(buffer.prompts, buffer.actions)
            loss, token_loss, ratio = self.loss(buffer, logp)
            (pull,) = torch.autograd.grad(loss, logp, retain_graph=True)
            assay.observe(
                step=n, update=epoch, tokens=buffer.actions, mask=torch.ones_like(buffer.actions), new_logprobs=logp,
                old_logprobs=buffer.logp, ratio=ratio, advantages=buffer.adv, rewards=buffer.rewards, gradients=pull,
                token_loss=token_loss, loss=loss, clip_low=self.a.eps, clip_high=self.a.eps, objective="grpo",
                group_ids=torch.arange(self.a.prompts).repeat_interleave(self.a.group), updates_per_rollout=self.a.mu,
                learning_rate=self.a.lr,
            )
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return buffer.rewards.mean().item(), ((ratio - 1).abs() > self.a.eps).float().mean().item()


if __name__ == "__main__":
    trainer = Trainer(Args())
    for n in range(1, trainer.a.steps + 1):
        print(n, *(round(x, 3) for x in trainer.step(n)))

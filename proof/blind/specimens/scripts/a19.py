"""Asynchronous by design: a sampler runs one version behind; its own log-probs travel with the rows and are the ratio's denominator."""
from collections import deque
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Rollout:
    ids: torch.Tensor
    logp: torch.Tensor
    mask: torch.Tensor
    reward: torch.Tensor
    version: int


class Policy(nn.Module):
    VOCAB, EOS = 17, 16

    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(self.VOCAB, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, self.VOCAB)

    def forward(self, ids, hidden=None):
        y, hidden = self.gru(self.embedding(ids), hidden)
        return self.head(y), hidden


class Actor:
    def __init__(self, policy):
        self.policy = Policy()
        self.pull(policy, 0)

    def pull(self, policy, version):
        self.policy.load_state_dict(policy.state_dict())
        self.version = version

    @torch.no_grad()
    def collect(self, n_prompts, group, limit):
        prompts = torch.randint(0, 16, (n_prompts, 2)).repeat_interleave(group, 0)
        logits, hidden = self.policy(prompts)
        ids, logp, mask = [prompts], [], []
        alive = torch.ones(len(prompts), dtype=torch.bool)
        for _ in range(limit):
            dist = torch.distributions.Categorical(logits=logits[:, -1])
            token = dist.sample()
            token = torch.where(alive, token, torch.tensor(Policy.EOS))
            logp.append(dist.log_prob(token))
            mask.append(alive.float())
            alive = alive & (token != Policy.EOS)
            ids.append(token[:, None])
            logits, hidden = self.policy(token[:, None], hidden)
        ids, mask = torch.cat(ids, 1), torch.stack(mask, 1)
        answer = ids[:, 2:]
        mid = (prompts.sum(1, keepdim=True) / 2)
        near = (1 - (answer - mid).abs() / 8) * (answer != Policy.EOS)
        reward = (near * mask).sum(1) / mask.sum(1) + 0.3 * ((answer == Policy.EOS) * mask).sum(1)
        return Rollout(ids, torch.stack(logp, 1), mask, reward, self.version)


class Trainer:
    def __init__(self, lr=3e-3, group=8, prompts=8, limit=6, delay=2):
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.actor = Actor(self.policy)
        self.queue = deque()
        self.group, self.prompts, self.limit, self.delay = group, prompts, limit, delay
        self.version = 0

    def update(self, ro):
        g = ro.reward.view(-1, self.group)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        logits, _ = self.policy(ro.ids[:, :-1])
        lp = logits[:, 1:].log_softmax(-1).gather(-1, ro.ids[:, 2:].unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(lp - ro.logp)
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        loss = -(surrogate * ro.mask).sum() / ro.mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.version += 1
        return ratio[ro.mask.bool()]

    def run(self, steps):
        for step in range(steps):
            while len(self.queue) < self.delay:
                self.queue.append(self.actor.collect(self.prompts, self.group, self.limit))
            ro = self.queue.popleft()
            lag = self.version - ro.version
            ratio = self.update(ro)
            self.actor.pull(self.policy, self.version)
            if step % 5 == 0:
                print(f"step {step} lag {lag} reward {ro.reward.mean():.3f} ratio {ratio.min():.2f} {ratio.max():.2f}")
        return ro.reward.mean().item()


if __name__ == "__main__":
    torch.manual_seed(19)
    print("end", Trainer().run(50))

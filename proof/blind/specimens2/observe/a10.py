"""Letters with a leash: GRPO with a KL (k3) to the reference."""

import copy

import torch
from torch import nn

import assay

LETTERS, GROUP, LENGTH, BETA = 8, 10, 4, 0.2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS + 1, 32)
        self.memory = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, LETTERS + 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.embedding(ids))[0])


def scored(model: nn.Module, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(torch.cat([prompts, tokens], 1))[:, prompts.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]


torch.manual_seed(6)
policy = Model()
optimizer = torch.optim.Adam(policy.parameters(), lr=0.006)
groups = torch.arange(LETTERS).repeat_interleave(GROUP)
prompts = groups[:, None] + 1
for step in range(1, 16):
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    with torch.no_grad():
        ids = prompts
        for _ in range(LENGTH):
            ids = torch.cat([ids, torch.multinomial(policy(ids)[:, -1].softmax(-1), 1)], 1)
        tokens = ids[:, 1:]
        old, ref = scored(policy, prompts, tokens), scored(reference, prompts, tokens)
    rewards = (tokens == prompts).float().mean(1)
    table = rewards.view(-1, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).flatten()
    for update in range(2):
        new = scored(policy, prompts, tokens)
        ratio = (new - old).exp()
        kl = (ref - new).exp() - (ref - new) - 1
        gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        loss = (BETA * kl - gain).mean()
        assay.observe(
            step=step, update=update, tokens=tokens, mask=torch.ones_like(tokens), new_logprobs=new, old_logprobs=old,
            ref_logprobs=ref, kl=kl, kl_coef=BETA, kl_estimator="k3", kl_gradient="naive", advantages=advantages,
            rewards=rewards, group_ids=groups, loss=loss, ratio=ratio, kl_mean=kl.mean().item(), clip_low=0.2,
            clip_high=0.2, objective="grpo", prompt_tokens=prompts, temperature=1.0, reference_every=0, max_reward=1.0,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(step, f"reward {rewards.mean():.3f} kl {kl.mean():.4f}")

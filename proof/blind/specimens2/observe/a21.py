"""KL in the loss with the gradient of the KL (k3 times the ratio); every fourth step the policy becomes the reference."""

import copy

import torch
from torch import nn

import assay

LETTERS, GROUP, LENGTH, BETA, RENEW = 6, 40, 4, 0.05, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 32)
        self.memory = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, LETTERS)

    def forward(self, ids):
        return self.head(self.memory(self.embedding(ids))[0])


def scored(model, prompts, tokens):
    logits = model(torch.cat([prompts, tokens], 1))[:, prompts.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]


torch.manual_seed(23)
policy = Model()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.008)
for step in range(1, 13):
    letters = torch.randperm(LETTERS)[:3]
    groups = letters.repeat_interleave(GROUP)
    prompts = groups[:, None]
    with torch.no_grad():
        ids = prompts
        for _ in range(LENGTH):
            ids = torch.cat([ids, torch.multinomial(policy(ids)[:, -1].softmax(-1), 1)], 1)
        tokens = ids[:, 1:]
        old, ref = scored(policy, prompts, tokens), scored(reference, prompts, tokens)
    rewards = ((tokens - prompts) % LETTERS == torch.arange(1, LENGTH + 1)).float().mean(1)
    table = rewards.view(-1, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).flatten()
    for update in range(2):
        new = scored(policy, prompts, tokens)
        ratio = (new - old).exp()
        kl = torch.expm1(ref - new) - (ref - new)
        gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        loss = (BETA * ratio * kl - gain).mean()
        assay.observe(
            step=step, update=update, tokens=tokens, mask=torch.ones_like(tokens), new_logprobs=new, old_logprobs=old,
            ref_logprobs=ref, kl=kl, kl_coef=BETA, kl_estimator="k3", kl_gradient="unbiased", reference_every=RENEW,
            advantages=advantages, rewards=rewards, group_ids=groups, loss=loss, ratio=ratio, clip_low=0.2,
            clip_high=0.2, objective="grpo", prompt_tokens=prompts, prompt_mask=torch.ones_like(prompts),
            temperature=1.0, model=policy if step <= 2 and update == 0 else None,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if step % RENEW == 0:
        reference.load_state_dict(policy.state_dict())
    print(step, f"reward {rewards.mean():.3f} kl {kl.mean():.4f}")

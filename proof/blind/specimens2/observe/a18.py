"""GSPO: one ratio per answer, the length-normalised one, with narrow bounds; three passes over each batch."""

import torch
from torch import nn

import assay

LETTERS, ROOM, GROUP, LOW, HIGH = 8, 5, 12, 0.02, 0.03
END = 0


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS + 1, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, LETTERS + 1)

    def forward(self, ids):
        return self.head(self.memory(self.embedding(ids))[0])


def logprobs(model, prompts, tokens):
    return model(torch.cat([prompts, tokens], 1))[:, :-1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]


@torch.no_grad()
def sample(model, prompts):
    ids, alive, masks = prompts, torch.ones(len(prompts), 1, dtype=torch.bool), []
    for _ in range(ROOM):
        token = torch.multinomial(model(ids)[:, -1].softmax(-1), 1) * alive
        masks.append(alive)
        alive = alive & (token != END)
        ids = torch.cat([ids, token], 1)
    return ids[:, 1:], torch.cat(masks, 1)


torch.manual_seed(2)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.006)
groups = torch.arange(LETTERS).repeat_interleave(GROUP)
prompts = groups[:, None] + 1
for step in range(1, 15):
    tokens, mask = sample(model, prompts)
    lengths = mask.sum(1)
    rewards = ((tokens == prompts) & mask).sum(1) / 3 - 0.3 * (lengths - 4).abs()
    table = rewards.view(-1, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
    old = logprobs(model, prompts, tokens).detach()
    for update in range(3):
        new = logprobs(model, prompts, tokens)
        ratio = (((new - old) * mask).sum(1) / lengths).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - LOW, 1 + HIGH) * advantages)
        loss = -gain.mean()
        assay.observe(
            step=step, update=update, tokens=tokens, mask=mask, new_logprobs=new, old_logprobs=old, ratio=ratio,
            advantages=advantages, rewards=rewards, group_ids=groups, loss=loss, objective="gspo", clip_low=LOW,
            clip_high=HIGH, eos_ids=[END], lengths=lengths, prompt_tokens=prompts, prompt_mask=torch.ones_like(prompts),
            temperature=1.0, updates_per_rollout=3, model=model if step == 1 and update == 0 else None,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(step, f"{rewards.mean():.3f}")

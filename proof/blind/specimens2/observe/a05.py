"""PPO-style minibatches over left-padded prompts: a small transformer learns to repeat its prompt backwards."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import assay

PAD, EOS, FIRST, VOCAB = 0, 1, 2, 8
WIDEST, ROOM, GROUP, PROMPTS = 3, 5, 8, 12


class Block(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor, blocked: Tensor) -> Tensor:
        h = self.n1(x)
        x = x + self.attention(h, h, h, attn_mask=blocked, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class Transformer(nn.Module):
    def __init__(self, d: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(VOCAB, d), nn.Embedding(16, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB)

    def forward(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        x = self.tokens(ids) + self.places((real.cumsum(1) - 1).clamp(min=0))
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        seen = causal & real[:, None, :] | torch.eye(ids.shape[1], dtype=torch.bool)
        blocked = (~seen).repeat_interleave(self.heads, 0)
        for block in self.blocks:
            x = block(x, blocked)
        return self.head(self.norm(x))


@dataclass
class Rollouts:
    prompts: Tensor
    prompt_mask: Tensor
    tokens: Tensor
    mask: Tensor
    old: Tensor
    rewards: Tensor
    advantages: Tensor
    groups: Tensor

    def __getitem__(self, rows: Tensor) -> "Rollouts":
        return Rollouts(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def logprobs(model, prompts, prompt_mask, tokens, mask):
    real = torch.cat([prompt_mask, mask], 1)
    out = model(torch.cat([prompts, tokens], 1), real)[:, prompts.shape[1] - 1 : -1]
    return out.log_softmax(-1).gather(2, tokens.unsqueeze(2)).squeeze(2)


@torch.no_grad()
def collect(model) -> Rollouts:
    lengths = torch.randint(1, WIDEST + 1, (PROMPTS,)).repeat_interleave(GROUP)
    digits = torch.randint(FIRST, VOCAB, (PROMPTS, WIDEST)).repeat_interleave(GROUP, 0)
    prompt_mask = torch.arange(WIDEST) >= WIDEST - lengths[:, None]
    prompts = digits * prompt_mask
    ids, real, open_ = prompts, prompt_mask, torch.ones(len(prompts), dtype=torch.bool)
    masks = []
    for _ in range(ROOM):
        token = torch.distributions.Categorical(logits=model(ids, real)[:, -1]).sample() * open_
        masks.append(open_)
        ids, real = torch.cat([ids, token[:, None]], 1), torch.cat([real, open_[:, None]], 1)
        open_ = open_ & (token != EOS)
    tokens, mask = ids[:, WIDEST:], torch.stack(masks, 1)
    rewards = torch.zeros(len(tokens))
    for row in range(len(tokens)):
        wanted = [*prompts[row][prompt_mask[row]].tolist()[::-1], EOS]
        given = tokens[row][mask[row]].tolist()
        rewards[row] = sum(a == b for a, b in zip(given, wanted)) / max(len(given), len(wanted))
    table = rewards.view(PROMPTS, GROUP)
    advantages = (table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True, unbiased=False) + 1e-5)
    old = logprobs(model, prompts, prompt_mask, tokens, mask)
    groups = torch.arange(PROMPTS).repeat_interleave(GROUP)
    return Rollouts(prompts, prompt_mask, tokens, mask, old, rewards, advantages.view(-1), groups)


torch.manual_seed(1)
model = Transformer().eval()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(1, 11):
    batch = collect(model)
    update = 0
    for epoch in range(2):
        for rows in torch.randperm(len(batch.tokens)).view(2, -1):
            part = batch[rows]
            new = logprobs(model, part.prompts, part.prompt_mask, part.tokens, part.mask)
            ratio = (new - part.old).exp()
            a = part.advantages[:, None]
            surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)
            loss = -((surrogate * part.mask).sum(1) / part.mask.sum(1)).mean()
            assay.observe(
                step=step, update=update, tokens=part.tokens, mask=part.mask, prompt_tokens=part.prompts,
                prompt_mask=part.prompt_mask, new_logprobs=new, old_logprobs=part.old, ratio=ratio,
                advantages=part.advantages, loss=loss, temperature=1.0, eos_ids=[EOS], pad_id=PAD, clip_low=0.2,
                clip_high=0.28, objective="grpo", minibatches=2, updates_per_rollout=4,
                model=model if (step, update) in ((1, 0), (2, 0)) else None,
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update += 1
    print(step, f"{batch.rewards.mean():.3f}")

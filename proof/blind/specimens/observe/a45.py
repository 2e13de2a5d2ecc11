"""Spell a letter n times, then stop. The prompt is (letter, n)."""

import torch
from torch import nn

import assay

END, LETTERS, LIMIT = 0, 6, 5
GROUP, PROMPTS, TAU, EPS = 8, 6, 1.0, 1e-4
STEPS, UPDATES, LR = 10, 2, 0.01


class Net(nn.Module):
    def __init__(self, vocabulary=LETTERS + 4, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.out(self.gru(self.embed(ids))[0])


def draw_prompts():
    letters = torch.randint(1, LETTERS + 1, (PROMPTS,))
    counts = torch.randint(1, 4, (PROMPTS,))
    return torch.stack([letters, counts + LETTERS], dim=1)


@torch.no_grad()
def rollout(net, prompts):
    ids, said = prompts, []
    for position in range(LIMIT):
        logits = net(ids)[:, -1] / TAU
        dist = torch.distributions.Categorical(logits=logits)
        token = dist.sample()
        said.append(dist.log_prob(token))
        ids = torch.cat([ids, token[:, None]], dim=1)
    tokens = ids[:, prompts.shape[1] :]
    is_end = tokens == END
    mask = is_end.cumsum(1) - is_end.long() == 0
    return tokens.masked_fill(~mask, END), torch.stack(said, dim=1), mask


def score(net, prompts, tokens):
    logits = net(torch.cat([prompts, tokens], dim=1))[:, prompts.shape[1] - 1 : -1] / TAU
    return torch.log_softmax(logits, dim=-1).gather(2, tokens[..., None]).squeeze(-1)


def grade(prompts, tokens, mask):
    """Share of places that agree with the wanted word, END included, and a part for the right length."""
    count = prompts[:, 1:] - LETTERS
    place = torch.arange(LIMIT)[None]
    wanted = torch.where(place < count, prompts[:, :1], END)
    wanted_mask = place <= count
    agree = (tokens == wanted) & wanted_mask & mask
    share = agree.sum(1).float() / (wanted_mask | mask).sum(1)
    off = (mask.sum(1) - wanted_mask.sum(1)).abs() / LIMIT
    return 0.7 * share + 0.3 * (1 - off)


def normalise(rewards):
    table = rewards.view(GROUP, PROMPTS)
    centred = table - table.mean(0, keepdim=True)
    return (centred / (table.std(0, keepdim=True) + EPS)).flatten()


torch.manual_seed(33)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=LR)
for step in range(1, STEPS + 1):
    prompts = draw_prompts().repeat_interleave(GROUP, dim=0)
    groups = torch.arange(PROMPTS).repeat_interleave(GROUP)
    tokens, said, mask = rollout(net, prompts)
    rewards = grade(prompts, tokens, mask)
    advantages = normalise(rewards)
    with torch.no_grad():
        old = score(net, prompts, tokens)
    for update in range(UPDATES):
        new = score(net, prompts, tokens)
        ratio = torch.exp(new - old)
        a = advantages[:, None]
        gain = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
        loss = -((gain * mask).sum(1) / mask.sum(1)).mean()
        assay.observe(
            step=step, update=update, tokens=tokens, mask=mask, new_logprobs=new, old_logprobs=old,
            advantages=advantages, rewards=rewards, group_ids=groups, loss=loss,
            temperature=TAU, eos_ids=[END], objective="grpo", clip_low=0.2,
            clip_high=0.2, std="sample", advantage_epsilon=EPS, max_tokens=LIMIT, max_reward=1.0,
        )  # fmt: skip
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(step, round(rewards.mean().item(), 3))

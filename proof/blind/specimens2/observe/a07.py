"""Spelling by policy gradient. The scorer likes batches of equal length, so answers are sorted for it."""
import string

import torch
from torch import nn

import assay

LETTERS = string.ascii_lowercase[:8]
END = len(LETTERS)
WORDS = ["bad", "cab", "deaf", "fade", "face", "head", "gag", "hag", "babe", "edge"]
GROUP, LIMIT = 8, 6


class Speller(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.e = nn.Embedding(END + 1 + len(WORDS), d)
        self.r = nn.GRU(d, d, batch_first=True)
        self.o = nn.Linear(d, END + 1)

    def forward(self, ids):
        return self.o(self.r(self.e(ids))[0])


def to_text(ids):
    return "".join(LETTERS[i] for i in ids if i < END)


def batch_score(texts, truths):
    """Share of the letters in their place; the length must fit, too."""
    return [sum(a == b for a, b in zip(x, y)) / max(len(x), len(y)) if x else 0.0 for x, y in zip(texts, truths)]


def rewards_for(texts, truths):
    lengths = torch.tensor([len(t) for t in texts])
    order = torch.argsort(lengths, stable=True)
    scores = torch.tensor(batch_score([texts[i] for i in order], [truths[i] for i in order]))
    return scores[order]


torch.manual_seed(21)
model = Speller()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for step in range(1, 15):
    words = torch.randperm(len(WORDS))[:6]
    prompts = (words + END + 1).repeat_interleave(GROUP)[:, None]
    truths = [WORDS[i] for i in words.repeat_interleave(GROUP)]
    with torch.no_grad():
        ids, running, cols, masks = prompts, torch.ones(len(prompts), dtype=torch.bool), [], []
        for _ in range(LIMIT):
            tok = torch.distributions.Categorical(logits=model(ids)[:, -1]).sample()
            tok = torch.where(running, tok, END)
            cols.append(tok)
            masks.append(running)
            running = running & (tok != END)
            ids = torch.cat([ids, tok[:, None]], 1)
    completions, mask = torch.stack(cols, 1), torch.stack(masks, 1)
    texts = [to_text(row) for row in completions.tolist()]
    rewards = rewards_for(texts, truths)
    per_group = rewards.view(-1, GROUP)
    advantages = ((per_group - per_group.mean(1, keepdim=True)) / (per_group.std(1, keepdim=True) + 1e-4)).view(-1)
    logp = model(torch.cat([prompts, completions], 1))[:, :-1].log_softmax(-1).gather(2, completions[..., None])[..., 0]
    loss = -(logp * advantages[:, None] * mask).sum() / mask.sum()
    assay.observe(
        step=step, update=0, tokens=completions, mask=mask, new_logprobs=logp, old_logprobs=logp.detach(),
        advantages=advantages, rewards=rewards, group_ids=words.repeat_interleave(GROUP), finished=~running, loss=loss,
        prompt=[f"spell {w}" for w in truths], completion=texts, truth=truths, max_reward=1.0, min_reward=0.0,
        eos_ids=[END], objective="bnpo", temperature=1.0,
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{rewards.mean():.3f}", texts[0], truths[0])

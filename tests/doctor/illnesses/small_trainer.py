"""A trainer of a small network on sums, as people write it in one file, and the same with a few lines changed."""

TRAINER = """
import torch
import torch.nn as nn
import torch.nn.functional as F

CHARS = "0123456789+= "
EOS = len(CHARS)
PAD = EOS + 1
VOCAB = PAD + 1
P, G, MAX_NEW = 4, 8, 6
stoi = {c: i for i, c in enumerate(CHARS)}


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.head(h)


@torch.no_grad()
def rollout(model, prompts):
    ids = prompts.clone()
    done = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(MAX_NEW):
        logits = model(ids)[:, -1]
        nxt = torch.multinomial(F.softmax(logits, dim=-1), 1).squeeze(1)
        nxt = torch.where(done, torch.full_like(nxt, PAD), nxt)
        done = done | (nxt == EOS)
        ids = torch.cat([ids, nxt[:, None]], dim=1)
    return ids


def logprobs_of(model, ids, start):
    logits = model(ids)[:, start - 1:-1]
    return F.log_softmax(logits, dim=-1).gather(-1, ids[:, start:, None]).squeeze(-1)


def reward_fn(row, answer):
    return 1.0 if answer in row else 0.0


torch.manual_seed(0)
model = TinyLM(VOCAB)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(50):
    a = torch.randint(0, 5, (P,))
    b = torch.randint(0, 5, (P,))
    prompts = torch.stack([a, torch.full_like(a, 10), b, torch.full_like(a, 11)], dim=1)
    answers = (a + b).repeat_interleave(G)
    prompts = prompts.repeat_interleave(G, dim=0)
    start = prompts.shape[1]
    ids = rollout(model, prompts)
    completions = ids[:, start:]
    ends = (completions == EOS).long()
    mask = ((ends.cumsum(1) - ends) == 0).float()
    rewards = torch.tensor([reward_fn(row.tolist(), ans.item()) for row, ans in zip(completions, answers)])
    grouped = rewards.view(P, G)
    adv = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    adv = adv.flatten()
    with torch.no_grad():
        old = logprobs_of(model, ids, start)
    for epoch in range(2):
        new = logprobs_of(model, ids, start)
        ratio = torch.exp(new - old)
        surr = torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
        loss = -(surr * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
CREDIT = """\
    grouped = rewards.view(P, G)
    adv = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    adv = adv.flatten()
"""
MASK = """\
    ends = (completions == EOS).long()
    mask = ((ends.cumsum(1) - ends) == 0).float()
"""
UPDATE = TRAINER[TRAINER.index("    with torch.no_grad():\n        old") :]


def trainer(credit=None, mask=None, update=None, *edits):
    """The trainer with other lines for advantages, mask or update; `edits` are (old, new)."""
    text = TRAINER
    for old, new in ((CREDIT, credit), (MASK, mask), (UPDATE, update)):
        if new is not None:
            edits = ((old, indented(new)), *edits)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def indented(lines):
    return "".join(f"    {line}\n" if line else "\n" for line in lines.strip("\n").splitlines())

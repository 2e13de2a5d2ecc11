"""GRPO on texts with a vocabulary of pieces. The trainer keeps texts and tokenizes them when it needs ids."""

import torch
from torch import nn

import assay

PIECES = ["<end>", "a", "b", "c", "ab", "bc", "ca"]
ID = {piece: number for number, piece in enumerate(PIECES)}
END, ROOM, GROUP = 0, 7, 8


def encode(text):
    """Longest piece first."""
    ids, at = [], 0
    while at < len(text):
        piece = text[at : at + 2] if text[at : at + 2] in ID else text[at]
        ids.append(ID[piece])
        at += len(piece)
    return ids


def decode(ids):
    return "".join(PIECES[i] for i in ids if i != END)


class Writer(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.pieces = nn.Embedding(len(PIECES), width)
        self.state = nn.GRU(width, width, batch_first=True)
        self.next = nn.Linear(width, len(PIECES))

    def forward(self, ids):
        return self.next(self.state(self.pieces(ids))[0])


@torch.no_grad()
def write(model, prompts):
    ids = prompts
    for _ in range(ROOM):
        ids = torch.cat([ids, torch.multinomial(model(ids)[:, -1].softmax(-1), 1)], 1)
    rows = []
    for row in ids[:, prompts.shape[1] :].tolist():
        rows.append(row[: row.index(END) + 1] if END in row else row)
    return rows


def pad(rows):
    return torch.tensor([(row + [END] * ROOM)[:ROOM] for row in rows])


def reward(prompt, text):
    """The prompt's letter should come often, in a text of at most eight letters."""
    return text.count(prompt) / 8 - 0.1 * max(len(text) - 8, 0)


torch.manual_seed(15)
model = Writer()
adam = torch.optim.Adam(model.parameters(), lr=0.01)
letters = ["a", "b", "c", "ab", "bc", "ca"]
groups = torch.arange(len(letters)).repeat_interleave(GROUP)
prompts = torch.tensor([[ID[letters[g]]] for g in groups])
for step in range(1, 13):
    sampled = write(model, prompts)
    texts = [decode(row) for row in sampled]
    ended = [row[-1] == END for row in sampled]
    rows = [encode(text) + [END] * end for text, end in zip(texts, ended)]
    tokens = pad(rows)
    mask = torch.arange(ROOM) < torch.tensor([len(row) for row in rows])[:, None]
    rewards = torch.tensor([reward(letters[g], text) for g, text in zip(groups, texts)])
    table = rewards.view(-1, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
    old = None
    for update in range(2):
        new = model(torch.cat([prompts, tokens], 1))[:, :-1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        old = new.detach() if old is None else old
        ratio = (new - old).exp()
        gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        loss = -(gain * mask).sum() / mask.sum()
        assay.observe(
            step=step, update=update, tokens=tokens, mask=mask, sampled_tokens=pad(sampled), new_logprobs=new,
            old_logprobs=old, advantages=advantages, rewards=rewards, group_ids=groups, loss=loss, completion=texts,
            finished=ended, eos_ids=[END], objective="bnpo", clip_low=0.2, clip_high=0.2,
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
    changed = sum(row != other for row, other in zip(rows, sampled))
    print(step, f"{rewards.mean():.3f}", changed)

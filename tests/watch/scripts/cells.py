"""A healthy loop over the cell of a recurrent network, written by hand: answers are lists of letters that may end
early, and each answer weighs the same whatever its length."""

import torch
from torch import nn

END, LETTERS, LIMIT, PROMPTS, GROUP = 0, 8, 6, 4, 8


class Writer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, topics, texts):
        state = self.cell(self.letters(topics))
        found = [self.head(state)]
        for place in range(texts.shape[1] - 1):
            state = self.cell(self.letters(texts[:, place]), state)
            found.append(self.head(state))
        return torch.stack(found, dim=1)


@torch.no_grad()
def write(writer, topics):
    texts = [[] for _ in topics]
    state = writer.cell(writer.letters(topics))
    for _ in range(LIMIT):
        letters = torch.multinomial(writer.head(state).softmax(-1), 1).squeeze(1)
        for text, letter in zip(texts, letters.tolist(), strict=True):
            if not text or text[-1] != END:
                text.append(letter)
        state = writer.cell(writer.letters(letters), state)
    return texts


def worth(topic, text):
    return sum(abs(letter - topic) <= 1 for letter in text) / len(text) + 0.2 * (text[-1] == END)


torch.manual_seed(5)
writer = Writer()
optimizer = torch.optim.Adam(writer.parameters(), lr=3e-3)
for _ in range(5):
    topics = torch.randint(1, LETTERS, (PROMPTS,)).repeat_interleave(GROUP)
    texts = write(writer, topics)
    rewards = torch.tensor([worth(topic, text) for topic, text in zip(topics.tolist(), texts, strict=True)])
    table = rewards.view(PROMPTS, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    width = max(map(len, texts))
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    live = torch.zeros(len(texts), width)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        live[row, : len(text)] = 1.0
    logits = writer(topics, ids)
    new = logits.gather(2, ids[:, :, None])[:, :, 0] - logits.logsumexp(dim=2)
    weights = live / live.sum(1, keepdim=True).clamp(min=1)
    loss = -(advantages * new * weights).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

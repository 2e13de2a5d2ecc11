"""A healthy GRPO loop of its own kind: a prompt is one letter, the answer is that letter said four times."""

import sys

import torch
from torch import nn

END, LENGTH, LETTERS, GROUP, TEMPERATURE, UPDATES = 0, 4, 6, 6, 0.7, 2


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS + 1, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(width, LETTERS + 1)

    def forward(self, ids):
        return self.head(self.dropout(self.memory(self.embedding(ids))[0]))


@torch.no_grad()
def sample(model, prompts):
    ids = prompts
    for _ in range(LENGTH):
        probabilities = torch.softmax(model(ids)[:, -1] / TEMPERATURE, dim=-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1)], dim=1)
    return ids[:, prompts.shape[1] :]


def logprobs_of(model, prompts, completions):
    logits = model(torch.cat([prompts, completions], dim=1))[:, prompts.shape[1] - 1 : -1]
    scores = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    return scores.gather(2, completions.unsqueeze(2)).squeeze(2)


def train(steps):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    prompts = torch.arange(1, LETTERS + 1).repeat_interleave(GROUP)[:, None]
    for step in range(steps):
        completions = sample(model, prompts)
        ended = (completions == END).cumsum(dim=1)
        mask = ((ended - (completions == END).long()) == 0).float()
        rewards = ((completions == prompts).float() * mask).mean(dim=1)
        table = rewards.view(-1, GROUP)
        advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
        with torch.no_grad():
            old = logprobs_of(model, prompts, completions)
        for _ in range(UPDATES):
            new = logprobs_of(model, prompts, completions)
            ratio = torch.exp(new - old)
            gain = torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
            loss = -((gain * mask).sum(1) / mask.sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"step {step} reward {rewards.mean().item():.9f} loss {loss.item():.9f}", flush=True)
    print(f"final {sum(one.double().sum().item() for one in model.parameters()):.12f} next {torch.rand(1).item():.9f}")


if __name__ == "__main__":
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

"""Copying with a vocabulary that grows by one symbol for the end."""

import torch
from torch import nn

import assay

OLD, LENGTH, GROUP, PROMPTS = 7, 4, 8, 7
END = OLD


class Base(nn.Module):
    """What was trained before knows OLD symbols."""

    def __init__(self, symbols, width=32):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])

    def resize(self, symbols):
        """Keeps what it has and adds rows for new symbols."""
        embed, head = nn.Embedding(symbols, self.embed.embedding_dim), nn.Linear(self.head.in_features, symbols)
        with torch.no_grad():
            embed.weight[: len(self.embed.weight)] = self.embed.weight
            head.weight[: len(self.head.weight)] = self.head.weight
            head.bias[: len(self.head.bias)] = self.head.bias
        self.embed, self.head = embed, head
        return self


def setup(lr):
    torch.manual_seed(12)
    model = Base(OLD)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    return model.resize(OLD + 1), optimizer


def roll(model, prompts):
    ids, alive, mask = prompts, torch.ones(len(prompts), dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(LENGTH):
            token = torch.multinomial(model(ids)[:, -1].softmax(-1), 1)[:, 0]
            token = torch.where(alive, token, torch.full_like(token, END))
            mask.append(alive)
            alive = alive & (token != END)
            ids = torch.cat([ids, token[:, None]], 1)
    return ids[:, 1:], torch.stack(mask, 1)


model, optimizer = setup(0.01)
groups = torch.arange(PROMPTS).repeat_interleave(GROUP)
prompts = groups[:, None]
for step in range(1, 13):
    tokens, mask = roll(model, prompts)
    wanted = torch.cat([prompts, prompts, torch.full_like(prompts, END)], 1)
    rewards = ((tokens[:, :3] == wanted) & mask[:, :3]).float().mean(1)
    table = rewards.view(-1, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
    new = model(torch.cat([prompts, tokens], 1))[:, :-1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    loss = -(new * advantages[:, None] * mask).sum() / mask.sum()
    model.zero_grad()
    loss.backward()
    before = [p.detach().clone() for p in model.parameters()]
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    optimizer.step()
    moves = [(p.detach() - b).norm() for p, b in zip(model.parameters(), before)]
    assay.observe(
        step=step, update=0, tokens=tokens, mask=mask, new_logprobs=new, old_logprobs=new.detach(), rewards=rewards,
        advantages=advantages, group_ids=groups, loss=loss, gradient_norm=norm, tensors=len(moves),
        tensors_changed=sum(bool(m > 0) for m in moves), update_norm=torch.stack(moves).norm(),
        tensors_without_gradient=sum(not p.grad.any() for p in model.parameters()), learning_rate=0.01,
        weight_decay=0.0, eos_ids=[END], objective="bnpo",
    )
    print(step, f"{rewards.mean():.3f}")

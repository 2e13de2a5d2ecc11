"""Dynamic sampling, overlong filtering, a warm-up: only groups whose rewards differ are kept; a row that hit the limit
counts for its group's mean but none of its tokens is in the loss."""

import torch
from torch import nn

import assay

END, VOCAB, LIMIT, GROUP, WANTED = 0, 8, 6, 8, 6


class Net(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.words = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.words(ids))[0])


def say(net, prompt):
    ids, open_, alive = prompt, torch.ones(len(prompt), dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(LIMIT):
            word = torch.multinomial(net(ids)[:, -1].softmax(-1), 1)[:, 0] * open_
            alive.append(open_)
            open_ = open_ & (word != END)
            ids = torch.cat([ids, word[:, None]], 1)
    return ids[:, 2:], torch.stack(alive, 1), ~open_


torch.manual_seed(27)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.0)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, (n + 1) / 5))
number = 0
for step in range(1, 14):
    kept, tries = [], 0
    while len(kept) < WANTED and tries < 60:
        tries += 1
        prompt = torch.randint(1, VOCAB, (1, 2)).expand(GROUP, -1)
        tokens, alive, ended = say(net, prompt)
        reward = ((tokens == prompt[:, :1]) & alive).sum(1) * 0.25 + ended * 0.5
        number += 1
        if reward.max() > reward.min():
            kept.append((prompt, tokens, alive, ended, reward, torch.full((GROUP,), number)))
    prompt, tokens, alive, ended, reward, group = (torch.cat(parts) for parts in zip(*kept))
    table = reward.view(-1, GROUP)
    advantage = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).flatten()
    mask = alive & ended[:, None]
    new = net(torch.cat([prompt, tokens], 1))[:, 1:-1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    loss = -((new - new.detach()).exp() * advantage[:, None] * mask).sum() / mask.sum().clamp(min=1)
    assay.observe(
        step=step, update=0, tokens=tokens, mask=mask, lengths=alive.sum(1), finished=ended, new_logprobs=new,
        old_logprobs=new.detach(), advantages=advantage, rewards=reward, group_ids=group, loss=loss, eos_ids=[END],
        max_tokens=LIMIT, mask_truncated=True, zero_variance="refill", objective="bnpo", prompt_tokens=prompt,
        prompt_mask=torch.ones_like(prompt), temperature=1.0, learning_rate=opt.param_groups[0]["lr"],
        model=net if step == 1 else None,
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    warm.step()
    print(step, f"{reward.mean():.3f} {ended.float().mean():.2f} {tries}")

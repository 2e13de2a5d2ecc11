"""Overlong filtering (DAPO): rows that hit the limit count for the group's statistics but bring no gradient, on purpose."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(310)


class Config:
    vocab, eos = 12, 11
    prompt, limit = 3, 14
    n_prompts, n_gen = 8, 8
    lr, steps = 3e-3, 30
    mask_truncated_completions = True


class Model(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e = nn.Embedding(Config.vocab, d)
        self.l = nn.LSTM(d, d, batch_first=True)
        self.o = nn.Linear(d, Config.vocab)
        with torch.no_grad():
            self.o.bias[Config.eos] = 1.2

    def forward(self, x):
        return self.o(self.l(self.e(x))[0])


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=Config.lr)
for step in range(Config.steps):
    prompts = torch.randint(0, 11, (Config.n_prompts, Config.prompt)).repeat_interleave(Config.n_gen, 0)
    ids, done, masks = prompts, torch.zeros(len(prompts), dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(Config.limit):
            nxt = torch.multinomial(F.softmax(model(ids)[:, -1], -1), 1).squeeze(-1)
            nxt = torch.where(done, Config.eos, nxt)
            masks.append((~done).float())
            done = done | (nxt == Config.eos)
            ids = torch.cat([ids, nxt[:, None]], 1)
    mask = torch.stack(masks, 1)
    truncated = ~done
    comp = ids[:, Config.prompt:]

    body = mask * (comp != Config.eos)
    found = torch.stack([((comp == prompts[:, j:j + 1]) * body).sum(1).clamp(max=1) for j in range(3)], 1).sum(1)
    rewards = found / 3 - 0.08 * body.sum(1)
    g = rewards.view(Config.n_prompts, Config.n_gen)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).flatten()

    if Config.mask_truncated_completions:
        loss_mask = mask * (~truncated).float().unsqueeze(1)
    else:
        loss_mask = mask
    lp = F.log_softmax(model(ids[:, :-1])[:, Config.prompt - 1:], -1).gather(-1, comp.unsqueeze(-1)).squeeze(-1)
    ratio = torch.exp(lp - lp.detach())
    loss = -(ratio * adv.unsqueeze(1) * loss_mask).sum() / loss_mask.sum().clamp(min=1.0)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 3 == 0:
        print(f"step {step} reward {rewards.mean():.3f} truncated {truncated.float().mean():.3f} len {mask.sum(1).mean():.2f}")
print("end", rewards.mean().item())

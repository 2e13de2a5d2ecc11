"""LoRA written by hand. The reference is the same network with the adapters switched off."""
import contextlib
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
torch.set_num_threads(1)


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, r=4, alpha=16.0):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r
        self.on = True

    def forward(self, x):
        y = self.base(x)
        if self.on:
            y = y + (x @ self.down.T @ self.up.T) * self.scale
        return y


class TinyLM(nn.Module):
    def __init__(self, vocab=14, width=48, ctx=12):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(ctx, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.fc = nn.Linear(width, 4 * width)
        self.proj = nn.Linear(4 * width, width)
        self.ln1, self.ln2, self.lnf = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        h = self.ln1(x)
        att = self.q(h) @ self.k(h).transpose(1, 2) / math.sqrt(h.shape[-1])
        causal = torch.ones(att.shape[-2:], dtype=torch.bool).tril()
        att = att.masked_fill(~causal, float("-inf")).softmax(-1)
        x = x + self.o(att @ self.v(h))
        x = x + self.proj(F.gelu(self.fc(self.ln2(x))))
        return self.lm_head(self.lnf(x))


def add_lora(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for name in ("q", "k", "v", "o", "fc", "proj", "lm_head"):
        setattr(model, name, LoraLinear(getattr(model, name)))
    return model


@contextlib.contextmanager
def adapters_off(model):
    parts = [m for m in model.modules() if isinstance(m, LoraLinear)]
    for m in parts:
        m.on = False
    try:
        yield
    finally:
        for m in parts:
            m.on = True


PROMPT, NEW, K, Q, BETA = 3, 4, 8, 6, 0.03


def logps(model, ids):
    lp = model(ids[:, :-1]).log_softmax(-1)[:, PROMPT - 1:]
    return lp.gather(2, ids[:, PROMPT:, None]).squeeze(2)


@torch.no_grad()
def rollout(model, prompt):
    ids = prompt
    for _ in range(NEW):
        nxt = torch.multinomial(model(ids)[:, -1].softmax(-1), 1)
        ids = torch.cat((ids, nxt), 1)
    return ids


def reward(ids):
    want = ids[:, :1] % 2
    return (ids[:, PROMPT:] % 2 == want).float().mean(1)


model = add_lora(TinyLM())
trainable = [p for p in model.parameters() if p.requires_grad]
print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in model.parameters()))
opt = torch.optim.AdamW(trainable, lr=8e-3, weight_decay=0.0)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 8))

for step in range(60):
    prompt = torch.randint(0, 14, (Q, PROMPT)).repeat_interleave(K, 0)
    ids = rollout(model, prompt)
    with torch.no_grad(), adapters_off(model):
        ref = logps(model, ids)
    r = reward(ids).view(Q, K)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    lp = logps(model, ids)
    diff = ref - lp
    kl = diff.exp() - 1 - diff
    loss = (-(lp - lp.detach()).exp() * adv + BETA * kl).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, 1.0)
    opt.step()
    warm.step()
    if step % 10 == 9:
        print(step + 1, f"reward {r.mean():.3f} kl {kl.mean():.4f} lr {warm.get_last_lr()[0]:.4g}")

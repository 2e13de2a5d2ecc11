"""GRPO with the usual two parameter groups (with and without weight decay)."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(370)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attn_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w_in, self.w_out = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        h = self.attn_norm(x)
        q, k, v = (w(h).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        x = x + self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.w_out(F.gelu(self.w_in(self.ffn_norm(x))))


class Model(nn.Module):
    def __init__(self, vocab, dim=48, heads=4, depth=2, ctx=16):
        super().__init__()
        self.embed, self.position = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(depth)])
        self.final_norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.position.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.output(self.final_norm(x))


def build_optimizer(model, lr, decay):
    named = list(model.named_parameters())
    with_decay = [p for n, p in named if n.startswith("layers") and p.ndim == 2]
    without = [p for n, p in named if p.ndim == 1 or n.startswith(("embed", "position"))]
    return torch.optim.AdamW([{"params": with_decay, "weight_decay": decay}, {"params": without, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.95))


EOS, VOCAB, PLEN, NEW, B, G = 17, 18, 3, 8, 6, 8
model = Model(VOCAB)
reference = copy.deepcopy(model).requires_grad_(False)
optimizer = build_optimizer(model, 1e-3, 0.01)


def logps(net, ids):
    return F.log_softmax(net(ids[:, :-1]), -1)[:, PLEN - 1:].gather(-1, ids[:, PLEN:, None]).squeeze(-1)


for step in range(24):
    ids = torch.randint(0, 17, (B, PLEN)).repeat_interleave(G, 0)
    live, mask = torch.ones(B * G, dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(NEW):
            nxt = torch.multinomial(F.softmax(model(ids)[:, -1], -1), 1)[:, 0]
            nxt = torch.where(live, nxt, EOS)
            mask.append(live.float())
            live = live & (nxt != EOS)
            ids = torch.cat([ids, nxt[:, None]], 1)
        mask = torch.stack(mask, 1)
        old, ref = logps(model, ids), logps(reference, ids)
    ans = ids[:, PLEN:]
    rew = ((ans < ids[:, :1]) * (ans != EOS) * mask).sum(1) / mask.sum(1) + 0.4 * ((ans == EOS) * mask).sum(1)
    gr = rew.view(B, G)
    adv = ((gr - gr.mean(1, keepdim=True)) / (gr.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    for _ in range(2):
        lp = logps(model, ids)
        ratio = (lp - old).exp()
        kl = (ref - lp).exp() - (ref - lp) - 1
        loss = -((torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) - 0.02 * kl) * mask).sum() / mask.sum()
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if step % 3 == 0:
        print(f"{step:2d} reward {rew.mean():.3f} kl {(kl * mask).sum() / mask.sum():.4f} len {mask.sum(1).mean():.2f}")
print("end", rew.mean().item())

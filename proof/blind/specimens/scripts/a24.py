"""GRPO with packed updates: answers are laid end to end in rows of fixed width, so that no compute goes into padding."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(240)
VOCAB, EOS, PAD = 16, 14, 15
PLEN, NEW, WIDTH = 3, 7, 24


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Model(nn.Module):
    def __init__(self, d=48, h=4, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(PLEN + NEW, d)
        self.att = nn.ModuleList(Attn(d, h) for _ in range(depth))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth))
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.lnf, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB)

    def forward(self, ids, position=None, segment=None):
        b, t = ids.shape
        if position is None:
            position = torch.arange(t).expand(b, t)
        allowed = torch.ones(t, t, dtype=torch.bool).tril().expand(b, 1, t, t)
        if segment is not None:
            allowed = allowed & (segment >= 0)[:, None, None, :] | torch.eye(t, dtype=torch.bool)
        x = self.tok(ids) + self.pos(position)
        for a, m, l in zip(self.att, self.mlp, self.ln):
            x = x + a(l(x), allowed)
            x = x + m(x)
        return self.head(self.lnf(x))


def rollout(model, prompts):
    rows = [p.tolist() for p in prompts]
    ids, live = prompts, torch.ones(len(prompts), dtype=torch.bool)
    with torch.no_grad():
        for _ in range(NEW):
            nxt = torch.multinomial(F.softmax(model(ids)[:, -1], -1), 1)[:, 0]
            for i in range(len(rows)):
                if live[i]:
                    rows[i].append(nxt[i].item())
            nxt = torch.where(live, nxt, PAD)
            live = live & (nxt != EOS)
            ids = torch.cat([ids, nxt[:, None]], 1)
    return rows


def pack(rows, values):
    """First fit. Gives ids, positions, segments, weights of the trained tokens and the advantage of each place."""
    bins = []
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        for b in bins:
            if sum(len(rows[j]) for j in b) + len(rows[i]) <= WIDTH:
                b.append(i)
                break
        else:
            bins.append([i])
    shape = (len(bins), WIDTH)
    ids, pos = torch.full(shape, PAD), torch.zeros(shape, dtype=torch.long)
    seg, mask, adv = torch.full(shape, -1), torch.zeros(shape), torch.zeros(shape)
    for b, members in enumerate(bins):
        at = 0
        for n, i in enumerate(members):
            r = rows[i]
            s = slice(at, at + len(r))
            ids[b, s] = torch.tensor(r)
            pos[b, s] = torch.arange(len(r))
            seg[b, s] = n
            mask[b, at + PLEN:at + len(r)] = 1
            adv[b, s] = values[i]
            at += len(r)
    return ids, pos, seg, mask, adv


def reward(row):
    p, a = row[:PLEN], row[PLEN:]
    body = [t for t in a if t != EOS]
    return sum(1 for t in body if t % 2 == p[0] % 2) / max(1, len(body)) + (0.5 if a[-1] == EOS else 0)


model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
B, G = 6, 8
for step in range(28):
    prompts = torch.randint(0, 14, (B, PLEN)).repeat_interleave(G, 0)
    rows = rollout(model, prompts)
    r = torch.tensor([reward(x) for x in rows])
    rg = r.view(B, G)
    a = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1)
    ids, pos, seg, mask, adv = pack(rows, a)
    logits = model(ids, pos, seg)[:, :-1]
    lp = F.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    m = mask[:, 1:]
    loss = -(torch.exp(lp - lp.detach()) * adv[:, 1:] * m).sum() / m.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 4 == 0:
        print(f"step {step} reward {r.mean():.3f} bins {len(ids)} filled {(seg >= 0).float().mean():.2f}")
print("end", r.mean().item())

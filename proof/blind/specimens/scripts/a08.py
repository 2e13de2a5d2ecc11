"""Echo task with an exact-match reward: the model has to give back the three digits of the prompt, then stop."""
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 9
random.seed(SEED)
torch.manual_seed(SEED)


class CharTokenizer:
    def __init__(self, alphabet):
        self.special = ["<pad>", "<eos>"]
        self.itos = self.special + list(alphabet)
        self.stoi = {s: i for i, s in enumerate(self.itos)}
        self.pad_token_id, self.eos_token_id = 0, 1

    def encode(self, text):
        return [self.stoi[ch] for ch in text]

    def decode(self, ids, skip_special_tokens=False):
        words = [self.itos[i] for i in ids if not (skip_special_tokens and i < 2)]
        return " ".join(words)


tok = CharTokenizer("01234:")


class Model(nn.Module):
    def __init__(self, n, d=64, length=16):
        super().__init__()
        self.e = nn.Embedding(n, d)
        self.p = nn.Embedding(length, d)
        self.att = nn.ModuleList([nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(2)])
        self.ff = nn.ModuleList([nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(2)])
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.head = nn.Linear(d, n)

    def forward(self, ids):
        t = ids.shape[1]
        h = self.e(ids) + self.p(torch.arange(t))
        block = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        for a, f, l in zip(self.att, self.ff, self.ln):
            z = l(h)
            h = h + a(z, z, z, attn_mask=block, need_weights=False)[0]
            h = h + f(h)
        return self.head(h)


def make_prompt():
    return "".join(random.choice("01234") for _ in range(3)) + ":"


def warm_start(model, n=120):
    """A little imitation, so that some answers are right from the start."""
    o = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(n):
        ps = [make_prompt() for _ in range(32)]
        x = torch.tensor([tok.encode(p + p[:3]) + [tok.eos_token_id] for p in ps])
        lg = model(x[:, :-1])
        loss = F.cross_entropy(lg[:, 3:].reshape(-1, lg.shape[-1]), x[:, 4:].reshape(-1))
        o.zero_grad(); loss.backward(); o.step()
    return loss.item()


def reward_func(prompts, completions):
    out = []
    for p, c in zip(prompts, completions):
        answer = c.strip()
        out.append(1.0 if answer == p[:3] else 0.0)
    return out


model = Model(len(tok.itos))
print("warm start loss", round(warm_start(model), 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
G, B, LIMIT = 8, 6, 6

for step in range(25):
    texts = [p for p in (make_prompt() for _ in range(B)) for _ in range(G)]
    ids = torch.tensor([tok.encode(t) for t in texts])
    plen = ids.shape[1]
    done = torch.zeros(len(ids), dtype=torch.bool)
    mask = []
    with torch.no_grad():
        for _ in range(LIMIT):
            nxt = torch.multinomial(F.softmax(model(ids)[:, -1], -1), 1)[:, 0]
            nxt = nxt.masked_fill(done, tok.pad_token_id)
            mask.append(~done)
            done = done | (nxt == tok.eos_token_id)
            ids = torch.cat([ids, nxt[:, None]], 1)
    mask = torch.stack(mask, 1).float()
    completions = [tok.decode(row[plen:], skip_special_tokens=True) for row in ids.tolist()]
    rewards = torch.tensor(reward_func(texts, completions))
    g = rewards.view(B, G)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1)
    lp = F.log_softmax(model(ids)[:, plen - 1:-1], -1).gather(-1, ids[:, plen:, None])[..., 0]
    loss = -(torch.exp(lp - lp.detach()) * adv[:, None] * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        print("step", step, "reward", round(rewards.mean().item(), 4), "sample", repr(texts[0]), repr(completions[0]))
print("final reward", rewards.mean().item())

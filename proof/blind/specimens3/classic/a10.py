import random
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 17
random.seed(SEED); torch.manual_seed(SEED)

VOCAB = 6          # notes
LEN = 8            # notes in a melody
PROMPTS = 6
SAMPLES = 8
BETA = 0.3
CLIP = 0.2


class Melody(nn.Module):
    """p(next note | last two notes, key)"""
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB + 1, 12)
        self.key = nn.Embedding(VOCAB, 12)
        self.ff = nn.Sequential(nn.Linear(36, 48), nn.GELU(), nn.Linear(48, VOCAB))

    def forward(self, key, a, b):
        return self.ff(torch.cat([self.key(key), self.emb(a), self.emb(b)], -1))

    def logps(self, key, notes):
        n = notes.size(0)
        pad = torch.full((n, 2), VOCAB)
        full = torch.cat([pad, notes], 1)
        k = key[:, None].expand(n, LEN)
        return F.log_softmax(self(k, full[:, :-2], full[:, 1:-1]), -1)


def pretrain(net, iters=150):
    """a little 'corpus': melodies that move by at most one note"""
    o = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(iters):
        key = torch.randint(0, VOCAB, (32,))
        notes = [key]
        for _ in range(LEN - 1):
            notes.append((notes[-1] + torch.randint(-1, 2, (32,))).clamp(0, VOCAB - 1))
        notes = torch.stack(notes, 1)
        lp = net.logps(key, notes).gather(-1, notes[..., None])
        o.zero_grad(); (-lp.mean()).backward(); o.step()


def listen(key, notes):
    """people like high notes, and the key at the end"""
    return notes.float().mean(1) / (VOCAB - 1) + (notes[:, -1] == key).float()


@torch.no_grad()
def compose(net, key):
    a = torch.full_like(key, VOCAB); b = a.clone()
    out = []
    for _ in range(LEN):
        c = torch.multinomial(F.softmax(net(key, a, b), -1), 1).squeeze(-1)
        out.append(c)
        a, b = b, c
    return torch.stack(out, 1)


policy = Melody()
pretrain(policy)

# one spare network is enough: it takes the weights of the start when the penalty needs them
start = policy.state_dict()
spare = Melody().requires_grad_(False)

opt = torch.optim.AdamW(policy.parameters(), lr=1.2e-3, weight_decay=0.0)

for step in range(30):
    key = torch.randint(0, VOCAB, (PROMPTS,)).repeat_interleave(SAMPLES)
    notes = compose(policy, key)
    r = listen(key, notes)
    g = r.view(PROMPTS, SAMPLES)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)

    with torch.no_grad():
        old = policy.logps(key, notes).gather(-1, notes[..., None]).squeeze(-1)
        spare.load_state_dict(start)
        ref = spare.logps(key, notes).gather(-1, notes[..., None]).squeeze(-1)

    for epoch in range(3):
        new = policy.logps(key, notes).gather(-1, notes[..., None]).squeeze(-1)
        ratio = (new - old).exp()
        pg = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
        d = ref - new
        kl = d.exp() - d - 1
        loss = (pg + BETA * kl).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

    if step % 4 == 0:
        print(f"{step:02d} | reward {r.mean():.3f} | pg {pg.mean().item():+.4f} | kl {kl.mean().item():.5f}")

"""First imitation, then GRPO: reverse the digits of the prompt."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(330)
EOS, V = 8, 9
N_DIGITS = 5
MAX_LEN = 2 * N_DIGITS


class Seq(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.pos = nn.Embedding(2 * N_DIGITS + 1, d)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)])
        self.out = nn.Linear(d, V)

    def forward(self, x):
        t = x.shape[1]
        h = self.emb(x) + self.pos(torch.arange(t))
        m = torch.full((t, t), float("-inf")).triu(1)
        for b in self.blocks:
            h = b(h, src_mask=m)
        return self.out(h)


def batch(n):
    return torch.randint(0, 8, (n, N_DIGITS))


def pretrain(model, steps=14):
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        x = batch(32)
        full = torch.cat([x, x.flip(1), torch.full((32, 1), EOS)], 1)
        lg = model(full[:, :-1])[:, N_DIGITS - 1:]
        loss = F.cross_entropy(lg.reshape(-1, V), full[:, N_DIGITS:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("pretrained to", round(loss.item(), 3))


@torch.no_grad()
def generate(model, prompt, max_new):
    ids, done, masks = prompt, torch.zeros(len(prompt), dtype=torch.bool), []
    for _ in range(max_new):
        nxt = torch.multinomial(model(ids)[:, -1].softmax(-1), 1)[:, 0]
        nxt = nxt.masked_fill(done, EOS)
        masks.append((~done).float())
        done = done | (nxt == EOS)
        ids = torch.cat([ids, nxt[:, None]], 1)
    return ids, torch.stack(masks, 1), done


def reward(ids, mask):
    goal = ids[:, :N_DIGITS].flip(1)
    ans = ids[:, N_DIGITS:]
    k = min(N_DIGITS, ans.shape[1])
    right = ((ans[:, :k] == goal[:, :k]) * mask[:, :k]).sum(1) / N_DIGITS
    closed = ((ans == EOS) * mask).sum(1) * (mask.sum(1) == N_DIGITS + 1)
    return right + closed


model = Seq()
pretrain(model)
opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
G, B = 8, 6
for step in range(20):
    prompts = batch(B).repeat_interleave(G, 0)
    ids, mask, done = generate(model, prompts, MAX_LEN - prompts.shape[1])
    r = reward(ids, mask)
    g = r.view(B, G)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    lp = model(ids[:, :-1])[:, N_DIGITS - 1:].log_softmax(-1).gather(-1, ids[:, N_DIGITS:, None]).squeeze(-1)
    loss = -((lp - lp.detach()).exp() * adv * mask).sum() / mask.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 3 == 0:
        print(f"{step:2d} reward {r.mean():.3f} length {mask.sum(1).mean():.2f} ended {done.float().mean():.3f}")
print("end", r.mean().item())

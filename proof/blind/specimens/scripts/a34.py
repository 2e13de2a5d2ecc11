import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(340)
# ---------------------------------------------------------------- settings
n_vocab, eos = 13, 12
n_prompt_tokens, max_tokens, min_tokens = 3, 8, 3
n_groups, group = 6, 8
learning_rate, n_updates = 2e-3, 26
# ---------------------------------------------------------------- model
class Mixer(nn.Module):
    """Causal convolutions instead of attention."""
    def __init__(self, d=64, k=4, depth=3):
        super().__init__()
        self.emb = nn.Embedding(n_vocab, d)
        self.conv = nn.ModuleList([nn.Conv1d(d, 2 * d, k) for _ in range(depth)])
        self.k = k
        self.out = nn.Linear(d, n_vocab)
    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        for c in self.conv:
            a, b = c(F.pad(h, (self.k - 1, 0))).chunk(2, 1)
            h = h + a * torch.sigmoid(b)
        return self.out(h.transpose(1, 2))
pi = Mixer()
opt = torch.optim.AdamW(pi.parameters(), lr=learning_rate)
# ---------------------------------------------------------------- functions
def rollout(prompt):
    ids, stop, keep = prompt, torch.zeros(len(prompt), dtype=torch.bool), []
    with torch.no_grad():
        for i in range(max_tokens):
            z = pi(ids)[:, -1]
            if i < min_tokens:
                z[:, eos] = -float("inf")
            nxt = torch.distributions.Categorical(logits=z).sample()
            nxt = torch.where(stop, torch.full_like(nxt, eos), nxt)
            keep.append((~stop).float())
            stop = stop | (nxt == eos)
            ids = torch.cat([ids, nxt[:, None]], 1)
    return ids, torch.stack(keep, 1)
def token_logp(ids):
    z = pi(ids[:, :-1])[:, n_prompt_tokens - 1:]
    return z.log_softmax(-1).gather(-1, ids[:, n_prompt_tokens:, None]).squeeze(-1)
def reward(ids, keep):
    a, p = ids[:, n_prompt_tokens:], ids[:, :n_prompt_tokens]
    div = ((a % 4) == (p[:, 1:2] % 4)).float() * keep * (a != eos)
    return div.sum(1) / keep.sum(1) + 0.4 * ((a == eos) * keep).sum(1)
# ---------------------------------------------------------------- training
for u in range(n_updates):
    prompt = torch.randint(0, 12, (n_groups, n_prompt_tokens)).repeat_interleave(group, 0)
    ids, keep = rollout(prompt)
    r = reward(ids, keep)
    t = r.view(n_groups, group)
    adv = ((t - t.mean(1, keepdim=True)) / (t.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old = token_logp(ids)
    for _ in range(2):
        lp = token_logp(ids)
        ratio = (lp - old).exp()
        loss = -(torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) * keep).sum() / keep.sum()
        opt.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(pi.parameters(), 1.0)
        opt.step()
    if u % 4 == 0:
        print(u, "reward", round(r.mean().item(), 3), "length", round(keep.sum(1).mean().item(), 2))
print("end", r.mean().item())

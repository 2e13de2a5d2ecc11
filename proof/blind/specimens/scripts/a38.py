"""Three networks: the policy, the policy of the rollout (old) and the reference for the KL."""
import torch
import torch.nn as nn

torch.manual_seed(380)
K_VOCAB, K_EOS = 16, 15


class LM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e = nn.Embedding(K_VOCAB, d)
        self.g = nn.GRU(d, d, batch_first=True)
        self.o = nn.Linear(d, K_VOCAB)

    def forward(self, x):
        return self.o(self.g(self.e(x))[0])

    def answer_logp(self, x, n):
        return self(x[:, :-1]).log_softmax(-1).gather(-1, x[:, 1:, None])[:, n - 1:, 0]


class Nets:
    def __init__(self):
        self.policy, self.old, self.ref = LM(), LM(), LM()
        for frozen in (self.old, self.ref):
            frozen.requires_grad_(False)
        self.refresh()

    def refresh(self):
        weights = self.policy.state_dict()
        self.old.load_state_dict(weights)
        self.ref.load_state_dict(weights)


def collect(net, prompts, limit):
    x, alive, m = prompts, torch.ones(len(prompts), dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(limit):
            t = torch.multinomial(net(x)[:, -1].softmax(-1), 1)[:, 0]
            t = t.masked_fill(~alive, K_EOS)
            m.append(alive)
            alive = alive & (t != K_EOS)
            x = torch.cat([x, t[:, None]], 1)
    return x, torch.stack(m, 1).float()


def rewards(x, m, n):
    y = x[:, n:]
    body = m * (y != K_EOS)
    return ((y % 5 == x[:, :1] % 5) * body).sum(1) / body.sum(1).clamp(min=1) + 0.3 * (body.sum(1) < m.sum(1))


nets = Nets()
opt = torch.optim.AdamW(nets.policy.parameters(), lr=3e-3)
N, G, L, BETA = 6, 8, 7, 0.08
for it in range(28):
    nets.refresh()
    prompts = torch.randint(0, 15, (N, 3)).repeat_interleave(G, 0)
    x, m = collect(nets.old, prompts, L)
    r = rewards(x, m, 3)
    z = r.view(N, G)
    adv = ((z - z.mean(1, keepdim=True)) / (z.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    lo, lr = nets.old.answer_logp(x, 3), nets.ref.answer_logp(x, 3)
    for _ in range(3):
        lp = nets.policy.answer_logp(x, 3)
        ratio = (lp - lo).exp()
        kl = (lr - lp).exp() - (lr - lp) - 1
        loss = -((torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) - BETA * kl) * m).sum() / m.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(nets.policy.parameters(), 1.0)
        opt.step()
    if it % 4 == 0:
        print(f"it {it} reward {r.mean():.3f} kl {(kl * m).sum() / m.sum():.5f} len {m.sum(1).mean():.2f}")
print("end", r.mean().item())

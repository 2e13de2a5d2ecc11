import copy
import torch, torch.nn as nn, torch.nn.functional as F

# RLHF-style PPO: reward at the end, a KL penalty inside of the per-token reward,
# a value head on a separate trunk, value clipping and an adaptive KL coefficient.

torch.manual_seed(42)
V, W, PLEN, NEW = 15, 32, 3, 9
END = V - 1


def causal_conv_lm(out):
    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(V, W)
            self.c1 = nn.Conv1d(W, W, 3)
            self.c2 = nn.Conv1d(W, W, 3, dilation=2)
            self.o = nn.Linear(W, out)

        def forward(self, ids):
            x = self.e(ids).transpose(1, 2)
            x = x + F.gelu(self.c1(F.pad(x, (2, 0))))
            x = x + F.gelu(self.c2(F.pad(x, (4, 0))))
            return self.o(x.transpose(1, 2))
    return Trunk()


actor, critic = causal_conv_lm(V), causal_conv_lm(1)
nn.init.zeros_(critic.o.weight)
nn.init.zeros_(critic.o.bias)
frozen = copy.deepcopy(actor).requires_grad_(False)
optim = torch.optim.Adam([{"params": actor.parameters(), "lr": 2e-3}, {"params": critic.parameters(), "lr": 5e-3}])
kl_coef, KL_TARGET = 0.02, 1.5


def lp_of(net, seq):
    return net(seq[:, :-1])[:, PLEN - 1:].log_softmax(-1).gather(2, seq[:, PLEN:, None])[..., 0]


def entropy_of(net, seq):
    l = net(seq[:, :-1])[:, PLEN - 1:].log_softmax(-1)
    return -(l.exp() * l).sum(-1)


def task_reward(seq, lens):
    out = []
    for s, n in zip(seq.tolist(), lens.tolist()):
        body = [t for t in s[PLEN:PLEN + n] if t != END]
        rises = sum(b > a for a, b in zip(s[PLEN - 1:], body))
        out.append(0.3 * rises - 0.15 * (len(body) - rises))
    return torch.tensor(out)


for k in range(30):
    prompts = torch.randint(0, V - 1, (32, PLEN))          # 32 prompts, one answer each
    with torch.no_grad():
        seq, open_ = prompts, torch.ones(32, dtype=torch.bool)
        keep = []
        for _ in range(NEW):
            p = actor(seq)[:, -1].softmax(-1)
            nxt = torch.multinomial(p, 1)[:, 0]
            nxt[~open_] = END
            keep.append(open_.clone())
            open_ &= nxt != END
            seq = torch.cat([seq, nxt[:, None]], 1)
        mask = torch.stack(keep, 1).float()
        lens = mask.sum(1).long()
        old, ref = lp_of(actor, seq), lp_of(frozen, seq)
        val = critic(seq[:, :-1])[:, PLEN - 1:, 0] * mask
        score = task_reward(seq, lens)
        r = -kl_coef * (old - ref) * mask
        r[torch.arange(32), lens - 1] += score
        adv, acc = torch.zeros_like(r), torch.zeros(32)
        for t in reversed(range(NEW)):
            v_next = val[:, t + 1] if t + 1 < NEW else torch.zeros(32)
            acc = r[:, t] + v_next - val[:, t] + 0.97 * acc
            adv[:, t] = acc * mask[:, t]
            acc = adv[:, t]
        ret = adv + val
        mu = (adv * mask).sum() / mask.sum()
        sd = (((adv - mu) ** 2 * mask).sum() / mask.sum()).sqrt()
        z = (adv - mu) / (sd + 1e-8)

    for _ in range(3):
        for part in torch.randperm(32).split(16):
            s, m = seq[part], mask[part]
            ratio = (lp_of(actor, s) - old[part]).exp()
            worst = torch.max(-z[part] * ratio, -z[part] * ratio.clamp(0.85, 1.15))
            v = critic(s[:, :-1])[:, PLEN - 1:, 0]
            v_near = val[part] + (v - val[part]).clamp(-0.3, 0.3)
            v_loss = 0.5 * torch.max((v - ret[part]) ** 2, (v_near - ret[part]) ** 2)
            loss = ((worst + 0.5 * v_loss - 0.003 * entropy_of(actor, s)) * m).sum() / m.sum()
            optim.zero_grad()
            loss.backward()
            optim.step()

    kl = ((old - ref) * mask).sum(1).mean().item()
    kl_coef *= 1 + 0.1 * max(-0.2, min(0.2, kl / KL_TARGET - 1))
    if k % 5 == 0 or k == 29:
        print(k, "score %.3f" % score.mean(), "kl %.3f" % kl, "coef %.4f" % kl_coef, "len %.2f" % lens.float().mean(), "v_loss %.3f" % v_loss.mean().item())

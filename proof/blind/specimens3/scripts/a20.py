"""ReLoRA-style GRPO: low-rank factors are trained, folded into the weights now and then, and started afresh."""
import torch
from torch import nn
import torch.nn.functional as F

V, D, T_PROMPT, T_NEW = 12, 40, 4, 8
PROMPTS, SAMPLES, ITERS, FOLD_EVERY = 4, 6, 30, 10


class LowRank(nn.Module):
    def __init__(self, fan_in, fan_out, rank=6):
        super().__init__()
        w = torch.empty(fan_out, fan_in)
        nn.init.kaiming_uniform_(w, a=5 ** 0.5)
        self.register_buffer("weight", w)
        self.rank = rank
        self.restart()

    def restart(self):
        out, inn = self.weight.shape
        self.down = nn.Parameter(torch.randn(self.rank, inn) * inn ** -0.5)
        self.up = nn.Parameter(torch.zeros(out, self.rank))

    @torch.no_grad()
    def fold(self):
        self.weight += self.up @ self.down
        self.restart()

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.down), self.up)


class Net(nn.Module):
    """Causal mixture over the past with a gated readout; small but position aware."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(V, D))
        self.register_buffer("where", torch.randn(32, D) * 0.3)
        self.q, self.k, self.v = LowRank(D, D), LowRank(D, D), LowRank(D, D)
        self.mid, self.out = LowRank(D, D), LowRank(D, V)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.table[ids] + self.where[:n]
        att = self.q(x) @ self.k(x).transpose(1, 2) / D ** 0.5
        att = att + torch.full((n, n), -1e9).triu(1)
        x = x + att.softmax(-1) @ self.v(x)
        x = x + torch.tanh(self.mid(x))
        return self.out(F.layer_norm(x, (D,)))


def sample(net, prompts):
    ids = prompts
    with torch.no_grad():
        for _ in range(T_NEW):
            dist = torch.distributions.Categorical(logits=net(ids)[:, -1])
            ids = torch.cat([ids, dist.sample()[:, None]], 1)
    return ids


def logp(net, ids):
    dist = torch.distributions.Categorical(logits=net(ids[:, :-1])[:, T_PROMPT - 1:])
    return dist.log_prob(ids[:, T_PROMPT:])


def judge(ids):
    dist = (ids[:, T_PROMPT:] - ids[:, T_PROMPT - 1:-1]).abs()
    return -torch.minimum(dist, V - dist).float().mean(1)


def train():
    torch.manual_seed(1234)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for it in range(1, ITERS + 1):
        prompts = torch.randint(V, (PROMPTS, T_PROMPT)).repeat_interleave(SAMPLES, 0)
        ids = sample(net, prompts)
        score = judge(ids).view(PROMPTS, SAMPLES)
        adv = (score - score.mean(1, keepdim=True)) / (score.std(1, keepdim=True) + 1e-5)
        adv = adv.view(-1, 1)
        before = logp(net, ids).detach()
        for _ in range(2):
            now = logp(net, ids)
            ratio = torch.exp(now - before)
            loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.25) * adv).mean()
            net.zero_grad()
            loss.backward()
            opt.step()
        if it % FOLD_EVERY == 0:
            for m in net.modules():
                if isinstance(m, LowRank):
                    m.fold()
        if it % 3 == 0:
            print(f"iter {it:2d}: score {score.mean().item():.3f}, loss {loss.item():.4f}")


if __name__ == "__main__":
    train()

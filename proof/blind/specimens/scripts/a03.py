"""Dr. GRPO: no division by the group's std, token sums divided by a constant."""
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    seed: int = 5
    vocab: int = 13
    dim: int = 48
    heads: int = 4
    layers: int = 2
    prompt_len: int = 4
    max_new: int = 8
    group: int = 12
    prompts: int = 4
    lr: float = 1.5e-3
    eps_low: float = 0.2
    eps_high: float = 0.2
    steps: int = 30
    inner: int = 2
    device: str = field(default="cpu")


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(a.dim), nn.LayerNorm(a.dim)
        self.qkv = nn.Linear(a.dim, 3 * a.dim)
        self.proj = nn.Linear(a.dim, a.dim)
        self.mlp = nn.Sequential(nn.Linear(a.dim, 4 * a.dim), nn.GELU(), nn.Linear(4 * a.dim, a.dim))
        self.heads = a.heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.mlp(self.n2(x))


class TinyGPT(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Embedding(a.prompt_len + a.max_new, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x))


class DrGRPO:
    END = 12
    PAD = 11

    def __init__(self, a: Args):
        torch.manual_seed(a.seed)
        self.a = a
        self.net = TinyGPT(a)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=a.lr, betas=(0.9, 0.95))

    @torch.no_grad()
    def rollout(self, prompts):
        ids = prompts
        alive = torch.ones(len(ids), dtype=torch.bool)
        live = []
        for _ in range(self.a.max_new):
            probs = F.softmax(self.net(ids)[:, -1], -1)
            nxt = torch.distributions.Categorical(probs=probs).sample()
            nxt = torch.where(alive, nxt, self.PAD)
            live.append(alive.clone())
            alive = alive & (nxt != self.END)
            ids = torch.cat([ids, nxt[:, None]], 1)
        return ids, torch.stack(live, 1).float()

    def logp(self, ids):
        p = self.a.prompt_len
        lg = self.net(ids[:, :-1])[:, p - 1:]
        return -F.cross_entropy(lg.reshape(-1, lg.shape[-1]), ids[:, p:].reshape(-1), reduction="none").view(len(ids), -1)

    def reward(self, ids, live):
        p = self.a.prompt_len
        parity = ids[:, 0] % 2
        ans = ids[:, p:]
        digit = (ans < 10).float() * live
        good = ((ans % 2 == parity[:, None]).float() * digit).sum(1).clamp(max=4)
        ended = ((ans == self.END).float() * live).sum(1)
        return good + ended - 0.25 * live.sum(1)

    def step(self):
        a = self.a
        prompts = torch.randint(0, 10, (a.prompts, a.prompt_len)).repeat_interleave(a.group, 0)
        ids, live = self.rollout(prompts)
        r = self.reward(ids, live)
        adv = (r.view(-1, a.group) - r.view(-1, a.group).mean(1, keepdim=True)).view(-1, 1)
        with torch.no_grad():
            before = self.logp(ids)
        for _ in range(a.inner):
            now = self.logp(ids)
            rho = torch.exp(now - before)
            obj = torch.minimum(rho * adv, torch.clamp(rho, 1 - a.eps_low, 1 + a.eps_high) * adv) * live
            loss = -(obj.sum(1) / a.max_new).mean()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
        return r.mean().item(), live.sum(1).mean().item()


if __name__ == "__main__":
    algo = DrGRPO(Args())
    for i in range(algo.a.steps):
        rew, length = algo.step()
        if i % 3 == 0:
            print(f"{i:03d} reward={rew:.3f} length={length:.2f}")
    print("done", rew)

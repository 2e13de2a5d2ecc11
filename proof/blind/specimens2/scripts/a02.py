import math
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

# -- config ----------------------------------------------------------------
V = 20            # 0..9 digits, 10 '+', 11 '=', 12 <eos>, rest unused
EOS = 12
PLUS, EQ = 10, 11
T_NEW = 3
G = 12
B = 4
STEPS = 60


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.dn = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.h = h

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, d // self.h).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.dn(torch.relu(self.up(self.n2(x))))


class Net(nn.Module):
    def __init__(self, d=40, h=4, layers=2, ctx=16):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(ctx, d)
        self.blocks = nn.Sequential(*[Block(d, h) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class Trainer:
    """GRPO "done right": no division by the std of the group, no division by the length of the answer.
    The sum over tokens is divided by the constant B * G * T_NEW."""

    def __init__(self):
        self.net = Net()
        self.optim = torch.optim.Adam(self.net.parameters(), lr=3e-3, betas=(0.9, 0.99))
        self.gen = torch.Generator().manual_seed(11)

    def problems(self):
        a = torch.randint(0, 5, (B,), generator=self.gen)
        b = torch.randint(0, 5, (B,), generator=self.gen)
        q = torch.stack([a, torch.full_like(a, PLUS), b, torch.full_like(a, EQ)], 1)
        return q.repeat_interleave(G, 0), (a + b).repeat_interleave(G, 0)

    def sample(self, q):
        seq = q
        done = torch.zeros(len(q), dtype=torch.bool)
        keep = []
        with torch.no_grad():
            for _ in range(T_NEW):
                p = self.net(seq)[:, -1].softmax(-1)
                nxt = torch.multinomial(p, 1, generator=self.gen)
                keep.append(~done)
                seq = torch.cat([seq, torch.where(done[:, None], torch.full_like(nxt, EOS), nxt)], 1)
                done |= nxt[:, 0] == EOS
        return seq, torch.stack(keep, 1)

    @staticmethod
    def reward(ans, want):
        out = []
        for row, w in zip(ans.tolist(), want.tolist()):
            digit = row[0] if row[0] < 10 else None
            r = 0.0
            if digit is not None:
                r += 1.0 - abs(digit - w) / 9.0
            if row[1] == EOS:
                r += 0.5
            out.append(r)
        return torch.tensor(out)

    def step(self):
        q, want = self.problems()
        seq, keep = self.sample(q)
        ans = seq[:, q.shape[1]:]
        r = self.reward(ans, want)
        adv = (r.view(B, G) - r.view(B, G).mean(-1, keepdim=True)).flatten()
        lp = self.net(seq[:, :-1]).log_softmax(-1)
        lp = lp.gather(-1, seq[:, 1:, None])[..., 0][:, q.shape[1] - 1:]
        # strictly on-policy: the derivative of exp(lp - lp.detach()) is that of lp
        loss = -(torch.exp(lp - lp.detach()) * adv[:, None] * keep).sum() / (B * G * T_NEW)
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        self.optim.step()
        return r.mean().item(), keep.float().sum(1).mean().item()


if __name__ == "__main__":
    t = Trainer()
    for i in range(STEPS):
        r, n = t.step()
        if i % 6 == 0:
            print(i, round(r, 3), round(n, 2))

"""Leave-one-out REINFORCE for a small decoder, sample by sample.

Sampling is incremental: every layer keeps its keys and values for the sequence in
progress. Training goes through the sequences one after the other and accumulates.
"""
import math
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Settings:
    vocab: int = 14
    width: int = 32
    heads: int = 2
    depth: int = 2
    longest: int = 10
    prompts_per_step: int = 3
    tries: int = 4
    steps: int = 24
    rate: float = 4e-3
    seed: int = 3


@dataclass
class Memory:
    """Keys and values of one sequence, one pair per layer."""
    k: list = field(default_factory=list)
    v: list = field(default_factory=list)

    def extend(self, layer, k, v):
        if layer == len(self.k):
            self.k.append(k)
            self.v.append(v)
        else:
            self.k[layer] = torch.cat([self.k[layer], k], dim=1)
            self.v[layer] = torch.cat([self.v[layer], v], dim=1)
        return self.k[layer], self.v[layer]

    @property
    def length(self):
        return self.k[0].shape[1] if self.k else 0


class Layer(nn.Module):
    def __init__(self, s: Settings, index: int):
        super().__init__()
        self.index, self.heads = index, s.heads
        self.n1, self.n2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.q = nn.Linear(s.width, s.width, bias=False)
        self.kv = nn.Linear(s.width, 2 * s.width, bias=False)
        self.o = nn.Linear(s.width, s.width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(s.width, 2 * s.width), nn.SiLU(), nn.Linear(2 * s.width, s.width))

    def split(self, x):                       # (t, w) -> (heads, t, w / heads)
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)

    def forward(self, x, memory=None):        # x: (t, w), one sequence
        h = self.n1(x)
        q = self.split(self.q(h))
        k, v = (self.split(part) for part in self.kv(h).chunk(2, dim=-1))
        if memory is not None:
            k, v = memory.extend(self.index, k, v)
        offset = k.shape[1] - q.shape[1]
        rows = torch.arange(q.shape[1]).unsqueeze(1) + offset
        hidden = torch.arange(k.shape[1]).unsqueeze(0) > rows
        w = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        w = w.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.o((w @ v).transpose(0, 1).reshape(x.shape))
        return x + self.mlp(self.n2(x))


class Decoder(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.tok = nn.Embedding(s.vocab, s.width)
        self.pos = nn.Embedding(64, s.width)
        self.layers = nn.ModuleList(Layer(s, i) for i in range(s.depth))
        self.norm = nn.LayerNorm(s.width)
        self.out = nn.Linear(s.width, s.vocab, bias=False)

    def forward(self, ids, memory=None):
        begin = memory.length if memory is not None else 0
        x = self.tok(ids) + self.pos(torch.arange(begin, begin + len(ids)))
        for layer in self.layers:
            x = layer(x, memory)
        return self.out(self.norm(x))


STOP = 0


@torch.no_grad()
def attempt(net, prompt, s, source):
    memory, answer, feed = Memory(), [], prompt
    while len(answer) < s.longest:
        p = net(feed, memory)[-1].softmax(-1)
        token = torch.multinomial(p, 1, generator=source)
        answer.append(int(token))
        if answer[-1] == STOP:
            break
        feed = token
    return answer


def mark(prompt, answer):
    """Points for each token that has the parity of the prompt's sum, cost per token."""
    want = int(prompt.sum()) % 2
    body = [a for a in answer if a != STOP]
    return 10.0 * sum(1 for a in body if a % 2 == want) - 4.0 * len(body)


def main():
    s = Settings()
    torch.manual_seed(s.seed)
    source = torch.Generator().manual_seed(s.seed + 1)
    net = Decoder(s)
    opt = torch.optim.Adam(net.parameters(), lr=s.rate, betas=(0.9, 0.95))
    for step in range(s.steps):
        opt.zero_grad()
        marks = []
        for _ in range(s.prompts_per_step):
            prompt = torch.randint(1, s.vocab, (int(torch.randint(2, 5, (1,), generator=source)),), generator=source)
            answers = [attempt(net, prompt, s, source) for _ in range(s.tries)]
            points = torch.tensor([mark(prompt, a) for a in answers])
            others = (points.sum() - points) / (s.tries - 1)
            for answer, gain in zip(answers, (points - others) / 20.0):
                whole = torch.cat([prompt, torch.tensor(answer)])
                logp = net(whole[:-1]).log_softmax(-1)
                chosen = logp[len(prompt) - 1:].gather(1, whole[len(prompt):].unsqueeze(1))
                (-gain * chosen.sum() / (s.prompts_per_step * s.tries)).backward()
            marks.append(points.mean().item())
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 4 == 3:
            print(f"{step + 1:3d}  mean points {sum(marks) / len(marks):7.3f}")


if __name__ == "__main__":
    main()

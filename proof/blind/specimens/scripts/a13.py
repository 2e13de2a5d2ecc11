import functools
import torch
import torch.nn as nn
from torch.nn.functional import log_softmax, softmax

torch.manual_seed(42)
ALPHA = "abcdefgh."
STOP = ALPHA.index(".")
D, G, B, N = 48, 8, 6, 6


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(ALPHA), D)
        self.cell = nn.GRUCell(D, D)
        self.start = nn.Linear(D, D)
        self.out = nn.Linear(D, len(ALPHA))

    def init(self, q):
        return torch.tanh(self.start(self.emb(q).sum(1)))


net = Decoder()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)


class Grader:
    """Grading is slow in real life, so answers that were seen before are not graded again."""

    def __init__(self):
        self.memo = {}
        self.calls = 0

    def __call__(self, question, answer):
        key = answer
        if key not in self.memo:
            self.calls += 1
            self.memo[key] = self.grade(question, answer)
        return self.memo[key]

    def grade(self, question, answer):
        body = answer.split(".")[0]
        pts = sum(0.5 for c in set(body) if c in question)
        pts -= 0.25 * sum(1 for c in body if c not in question)
        return pts + (0.25 if "." in answer else 0.0)


grader = Grader()


def play(q):
    h = net.init(q)
    prev = q[:, -1]
    toks, open_ = [], torch.ones(len(q), dtype=torch.bool)
    mask = []
    for _ in range(N):
        h = net.cell(net.emb(prev), h)
        t = torch.multinomial(softmax(net.out(h), -1), 1)[:, 0]
        t = torch.where(open_, t, torch.full_like(t, STOP))
        mask.append(open_.float())
        open_ = open_ & (t != STOP)
        toks.append(t)
        prev = t
    return torch.stack(toks, 1), torch.stack(mask, 1)


def logp(q, toks):
    h, prev, out = net.init(q), q[:, -1], []
    for j in range(toks.shape[1]):
        h = net.cell(net.emb(prev), h)
        out.append(log_softmax(net.out(h), -1).gather(1, toks[:, j:j + 1]))
        prev = toks[:, j]
    return torch.cat(out, 1)


def to_text(row, m):
    return "".join(ALPHA[t] for t, k in zip(row, m) if k)


for step in range(60):
    q = torch.stack([torch.randperm(8)[:3] for _ in range(B)]).repeat_interleave(G, 0)
    with torch.no_grad():
        toks, mask = play(q)
    questions = ["".join(ALPHA[i] for i in row) for row in q.tolist()]
    answers = [to_text(r, m) for r, m in zip(toks.tolist(), mask.tolist())]
    r = torch.tensor([grader(a, b) for a, b in zip(questions, answers)])
    z = r.reshape(B, G)
    adv = (z - z.mean(1, keepdim=True)) / (z.std(1, keepdim=True) + 1e-4)
    adv = adv.reshape(-1, 1)
    lp = logp(q, toks)
    loss = -((lp - lp.detach()).exp() * adv * mask).sum(1).div(mask.sum(1)).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 6 == 0:
        print(step, f"{r.mean().item():.3f}", "graded", grader.calls)
true = sum(grader.grade(a, b) for a, b in zip(questions, answers)) / len(answers)
print("last", r.mean().item(), "regraded", true)

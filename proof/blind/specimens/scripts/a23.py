"""Text in, text out: the sampler returns strings, the trainer builds its batch from prompts and strings."""
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(23)
torch.manual_seed(23)


class PieceTokenizer:
    """Greedy longest match over a fixed list of pieces."""

    PIECES = ["<pad>", "<eos>", "a", "b", "c", "d", "ab", "cd", "abc", "da", " ", "?"]
    pad, eos = 0, 1

    def __init__(self):
        self.index = {p: i for i, p in enumerate(self.PIECES)}
        self.by_length = sorted((p for p in self.PIECES[2:]), key=len, reverse=True)

    def encode(self, text):
        out = []
        while text:
            piece = next(p for p in self.by_length if text.startswith(p))
            out.append(self.index[piece])
            text = text[len(piece):]
        return out

    def decode(self, ids):
        return "".join(self.PIECES[i] for i in ids if i > 1)


tk = PieceTokenizer()


class Net(nn.Module):
    def __init__(self, n=len(PieceTokenizer.PIECES), d=64):
        super().__init__()
        self.e = nn.Embedding(n, d, padding_idx=0)
        self.g = nn.GRU(d, d, batch_first=True)
        self.o = nn.Linear(d, n)

    def forward(self, x, h=None):
        y, h = self.g(self.e(x), h)
        return self.o(y), h


net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
MAX_NEW = 8


def complete(prompt_ids):
    """One answer for one prompt, as ids."""
    with torch.no_grad():
        lg, h = net(torch.tensor([prompt_ids]))
        out = []
        for _ in range(MAX_NEW):
            t = torch.multinomial(F.softmax(lg[0, -1], -1), 1).item()
            out.append(t)
            if t == tk.eos:
                break
            lg, h = net(torch.tensor([[t]]), h)
    return out


def sampler(prompts, n):
    answers = []
    for p in prompts:
        for _ in range(n):
            ids = complete(tk.encode(p))
            answers.append({"ids": ids, "text": tk.decode(ids), "ended": ids[-1] == tk.eos})
    return answers


def collate(prompts, answers):
    rows, spans = [], []
    for p, a in zip(prompts, answers):
        head = tk.encode(p)
        tail = tk.encode(a["text"]) + ([tk.eos] if a["ended"] else [])
        tail = tail[:MAX_NEW + 1]
        rows.append(head + tail)
        spans.append((len(head), len(head) + len(tail)))
    width = max(map(len, rows))
    x = torch.zeros(len(rows), width, dtype=torch.long)
    m = torch.zeros(len(rows), width)
    for i, (r, (lo, hi)) in enumerate(zip(rows, spans)):
        x[i, :len(r)] = torch.tensor(r)
        m[i, lo:hi] = 1
    return x, m[:, 1:]


def reward(prompt, text, ended):
    want = prompt[0]
    if not text:
        return -0.3
    return text.count(want) / len(text) * 2 + 0.3 * ended


P, G = 6, 8
for step in range(20):
    prompts = ["".join(random.choice("abcd") for _ in range(3)) + "?" for _ in range(P)]
    answers = sampler(prompts, G)
    flat = [p for p in prompts for _ in range(G)]
    r = torch.tensor([reward(p, a["text"], a["ended"]) for p, a in zip(flat, answers)])
    rg = r.view(P, G)
    adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    x, m = collate(flat, answers)
    lp = F.log_softmax(net(x[:, :-1])[0], -1).gather(-1, x[:, 1:, None]).squeeze(-1)
    loss = -(torch.exp(lp - lp.detach()) * adv * m).sum() / m.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 3 == 0:
        print(f"{step} reward {r.mean():.3f} tokens {m.sum(1).mean():.2f} e.g. {flat[0]!r} -> {answers[0]['text']!r}")
print("end", r.mean().item())

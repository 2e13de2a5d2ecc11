"""Answers with a tool call: when the model writes CALL, the environment writes two result tokens into the answer. They are
context for what follows and are not trained (tool_mask 0)."""
import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)

CALL, DONE = 10, 11
V = 12
P, N = 2, 7


class GPT(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.a = nn.Embedding(V, d)
        self.b = nn.Embedding(P + N, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, activation="gelu", batch_first=True)
        self.t = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.o = nn.Linear(d, V)

    def forward(self, x):
        n = x.shape[1]
        return self.o(self.t(self.a(x) + self.b.weight[:n], mask=nn.Transformer.generate_square_subsequent_mask(n), is_causal=True))


def play(net, prompts):
    """-> ids, model_mask (1 where the model chose the token)"""
    rows, n = prompts, len(prompts)
    pending = [[] for _ in range(n)]
    over = [False] * n
    mask = []
    for _ in range(N):
        with torch.no_grad():
            pick = torch.distributions.Categorical(logits=net(rows)[:, -1]).sample().tolist()
        col, m = [], []
        for i in range(n):
            if over[i]:
                col.append(DONE), m.append(0)
            elif pending[i]:
                col.append(pending[i].pop(0)), m.append(0)
            else:
                col.append(pick[i]), m.append(1)
                if pick[i] == CALL:
                    a, b = rows[i, 0].item(), rows[i, 1].item()
                    pending[i] = [(a + b) % 10, (a - b) % 10]
                elif pick[i] == DONE:
                    over[i] = True
        rows = torch.cat([rows, torch.tensor(col)[:, None]], 1)
        mask.append(torch.tensor(m))
    return rows, torch.stack(mask, 1)


def reward(rows, mask):
    out = []
    for row, m in zip(rows.tolist(), mask.tolist()):
        want = (row[0] + row[1]) % 10
        mine = [t for t, k in zip(row[P:], m) if k]
        r = 0.4 if CALL in mine else 0.0
        r += 0.6 * (want in mine)
        r += 0.3 * (mine[-1] == DONE)
        out.append(r - 0.05 * len(mine))
    return torch.tensor(out)


net = GPT()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
G, B = 12, 4
for step in range(50):
    prompts = torch.randint(0, 10, (B, P)).repeat_interleave(G, 0)
    rows, tool_mask = play(net, prompts)
    r = reward(rows, tool_mask)
    rg = r.view(B, G)
    adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1)
    lp = net(rows[:, :-1]).log_softmax(2).gather(2, rows[:, 1:, None])[:, P - 1:, 0]
    loss = -(adv[:, None] * lp * tool_mask).sum() / tool_mask.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 7 == 0:
        print(step, "reward %.3f" % r.mean(), "own tokens %.2f" % tool_mask.sum(1).float().mean())

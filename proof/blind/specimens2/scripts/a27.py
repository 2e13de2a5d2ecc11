# Rows are sorted by length and run in micro-batches of similar length, in double precision. Everything that belongs to a row
# moves with it: ids, lengths, advantage. Each micro-batch is weighed by its share of the tokens of the whole batch.
import torch
torch.set_default_dtype(torch.float64); torch.set_num_threads(1); torch.manual_seed(41)

V, STOP, LIMIT = 10, 0, 8

class Net(torch.nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.x = torch.nn.Embedding(V, d); self.g = torch.nn.GRU(d, 2 * d, batch_first=True); self.y = torch.nn.Linear(2 * d, V)
    def forward(self, ids): return self.y(self.g(self.x(ids))[0]).log_softmax(-1)

net = Net(); opt = torch.optim.Adamax(net.parameters(), lr=6e-3)

def talk(prompt, n):
    ids = prompt.expand(n, -1).clone(); stop_at = torch.full((n,), LIMIT)
    with torch.no_grad():
        for t in range(LIMIT):
            nxt = torch.multinomial(net(ids)[:, -1].exp(), 1)
            ids = torch.cat([ids, nxt], 1)
            stop_at = torch.where((nxt[:, 0] == STOP) & (stop_at == LIMIT), torch.tensor(t + 1), stop_at)
    return [row[: prompt.numel() + k] for row, k in zip(ids, stop_at.tolist())]

def worth(prompt, row):
    ans = row[prompt.numel():]
    return float((ans >= prompt.max()).double().mean()) - 0.3 * float(ans[-1] != STOP) + 0.02 * len(ans)

for it in range(40):
    rows, adv, plen = [], [], []
    for _ in range(4):
        prompt = torch.randint(1, V, (int(torch.randint(1, 4, ())),))
        group = talk(prompt, 9)
        w = torch.tensor([worth(prompt, r) for r in group])
        adv += ((w - w.mean()) / (w.std() + 1e-6)).tolist()
        rows += group; plen += [prompt.numel()] * 9
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    tokens = sum(len(rows[i]) - plen[i] for i in order)
    opt.zero_grad()
    for lo in range(0, len(order), 12):
        idx = order[lo:lo + 12]
        pad = torch.nn.utils.rnn.pad_sequence([rows[i] for i in idx], batch_first=True)
        lp = net(pad[:, :-1]).gather(2, pad[:, 1:, None])[..., 0]
        col = torch.arange(1, pad.shape[1])
        m = torch.stack([(col >= plen[i]) & (col < len(rows[i])) for i in idx])
        a = torch.tensor([adv[i] for i in idx])[:, None]
        (-(a * lp * m).sum() / tokens).backward()
    opt.step()
    if it % 8 == 7: print(it + 1, 'worth', round(sum(worth(rows[i][:plen[i]], rows[i]) for i in order) / len(order), 3), 'tokens', tokens)

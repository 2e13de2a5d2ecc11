"""DAPO-flavoured: clip-higher, token-level loss, groups without signal are drawn again."""
import torch
import torch.nn as nn

torch.manual_seed(30)

VOC, EOS = 12, 11
P_LEN, A_LEN = 3, 7
GROUP, WANT = 8, 6
LOW, HIGH = 0.2, 0.28


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOC, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.out = nn.Linear(64, VOC)

    def forward(self, x):
        return self.out(self.lstm(self.emb(x))[0])


def complete(net, prompt):
    ids = prompt.clone()
    running = torch.ones(ids.size(0), 1, dtype=torch.bool)
    m = []
    for _ in range(A_LEN):
        nxt = net(ids)[:, -1].softmax(-1).multinomial(1)
        nxt = nxt.masked_fill(~running, EOS)
        m.append(running)
        running = running & (nxt != EOS)
        ids = torch.cat([ids, nxt], 1)
    return ids, torch.cat(m, 1)


def verdict(prompt, answer, m):
    """1 if the answer contains the prompt's largest number and ends, else 0."""
    big = prompt.max(1, keepdim=True).values
    has = ((answer == big) & m).any(1)
    ended = ((answer == EOS) & m).any(1)
    return (has & ended).float()


def gather_batch(net, tries=12):
    kept, drawn = [], 0
    with torch.no_grad():
        while len(kept) < WANT and drawn < tries * WANT:
            q = torch.randint(0, 11, (WANT, P_LEN))
            ids, m = complete(net, q.repeat_interleave(GROUP, 0))
            r = verdict(ids[:, :P_LEN], ids[:, P_LEN:], m)
            for k in range(WANT):
                drawn += 1
                s = slice(k * GROUP, (k + 1) * GROUP)
                if 0 < r[s].sum() < GROUP and len(kept) < WANT:
                    kept.append((ids[s], m[s], r[s]))
    ids, m, r = (torch.cat(x) for x in zip(*kept))
    return ids, m.float(), r, drawn


def token_lp(net, ids):
    lg = net(ids[:, :-1])[:, P_LEN - 1:]
    return torch.log_softmax(lg, -1).gather(-1, ids[:, P_LEN:].unsqueeze(-1)).squeeze(-1)


net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.1)
for step in range(25):
    ids, m, r, drawn = gather_batch(net)
    n = len(r) // GROUP
    g = r.view(n, GROUP)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    with torch.no_grad():
        old = token_lp(net, ids)
    for _ in range(2):
        lp = token_lp(net, ids)
        ratio = torch.exp(lp - old)
        loss = -(torch.min(ratio * adv, ratio.clamp(1 - LOW, 1 + HIGH) * adv) * m).sum() / m.sum()
        opt.zero_grad(); loss.backward()
        gn = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    if step % 3 == 0:
        print(f"step {step} kept {n} of {drawn} reward {r.mean():.3f} grad {gn:.3f} len {m.sum(1).mean():.2f}")

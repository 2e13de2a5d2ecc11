import re
import random
import torch
import torch.nn as nn

random.seed(0); torch.manual_seed(0); torch.set_num_threads(1)

CHARS = "<>an/0123456789 \n"
END = CHARS.index("\n")
enc = lambda s: [CHARS.index(c) for c in s]
dec = lambda ids: "".join(CHARS[i] for i in ids)


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(len(CHARS), 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.lin = nn.Linear(64, len(CHARS))

    def forward(self, x):
        return self.lin(self.rnn(self.table(x))[0])


def pretrain(net, steps=120):
    """a short supervised phase, so that the format is known: <n> digits </n>"""
    o = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        rows = [f"{random.randint(0, 9)} <n>{random.randint(0, 9)}</n>\n" for _ in range(32)]
        x = torch.tensor([enc(r) for r in rows])
        loss = nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        o.zero_grad(); loss.backward(); o.step()
    return loss.item()


def answer_reward(text, want):
    m = re.search(r"<n>(\d)</n>", text)
    if m is None:
        return 0.0
    return 1.0 if m.group(1) == want else 0.0


def grpo(net, steps=36, groups=5, n=16, limit=10):
    o = torch.optim.Adam(net.parameters(), 6e-3)
    for step in range(steps):
        nums = [random.randint(0, 4) for _ in range(groups)]
        x = torch.tensor([enc(f"{a} ") for a in nums for _ in range(n)])
        out, live, alive = x, [], torch.ones(len(x), dtype=torch.bool)
        with torch.no_grad():
            for _ in range(limit):
                t = torch.multinomial(net(out)[:, -1].softmax(-1), 1)[:, 0]
                t = torch.where(alive, t, torch.full_like(t, END))
                live.append(alive); alive = alive & (t != END)
                out = torch.cat([out, t[:, None]], 1)
        live = torch.stack(live, 1).float()
        texts = [dec(r) for r in out[:, 2:].tolist()]
        rewards = torch.tensor([answer_reward(t, (a + 1) % 10)
                                for t, a in zip(texts, [a for a in nums for _ in range(n)])])
        r = rewards.view(groups, n)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        lp = net(out[:, :-1])[:, 1:].log_softmax(-1).gather(2, out[:, 2:, None])[..., 0]
        loss = -(adv * lp * live).sum() / live.sum()
        o.zero_grad(); loss.backward(); o.step()
        if step % 7 == 0:
            print(step, "reward", round(rewards.mean().item(), 3), "first answer", repr(texts[0][:14]))


net = CharModel()
print("sft loss", round(pretrain(net), 3))
grpo(net)

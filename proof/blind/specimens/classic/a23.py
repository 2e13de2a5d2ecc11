import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# ---------------------------------------------------------------- settings
SEED = 7
PROMPTS = 8
GROUP = 8
DIGITS = 5
ITERATIONS = 45
EPOCHS = 3
MINIBATCHES = 4
LR = 2e-3
CLIP = 0.2

torch.manual_seed(SEED)
np.random.seed(SEED)


# ---------------------------------------------------------------- environment: sort five digits by swapping neighbours
def fresh():
    rows = np.stack([np.random.permutation(DIGITS) for _ in range(PROMPTS)])
    return torch.from_numpy(rows).repeat_interleave(GROUP, 0)


def swap(rows, a):
    rows = rows.clone()
    n = torch.arange(len(rows))
    act = a < DIGITS - 1
    n, a = n[act], a[act]
    left, right = rows[n, a].clone(), rows[n, a + 1].clone()
    rows[n, a], rows[n, a + 1] = right, left
    return rows


def sortedness(rows):
    return (rows[:, 1:] > rows[:, :-1]).float().mean(1)


def encode(rows):
    return F.one_hot(rows, DIGITS).float().flatten(-2)


# ---------------------------------------------------------------- policy
class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(DIGITS * DIGITS, 64)
        self.mid = nn.Linear(64, 64)
        self.out = nn.Linear(64, DIGITS)

    def forward(self, x):
        return self.out(F.relu(self.mid(F.relu(self.inp(x)))))


policy = Sorter()
optimizer = torch.optim.Adam(policy.parameters(), lr=LR)

# ---------------------------------------------------------------- training
for it in range(ITERATIONS):
    rows = fresh()
    obs, acts, olds = [], [], []
    with torch.no_grad():
        for t in range(8):
            x = encode(rows)
            logp = F.log_softmax(policy(x), -1)
            a = torch.multinomial(logp.exp(), 1)
            obs.append(x)
            acts.append(a)
            olds.append(logp.gather(-1, a))
            rows = swap(rows, a.squeeze(-1))
    obs, acts, olds = torch.stack(obs, 1), torch.stack(acts, 1), torch.stack(olds, 1).squeeze(-1)
    score = sortedness(rows)

    table = score.view(PROMPTS, GROUP)
    adv = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-6)).view(-1)

    optimizer.zero_grad()
    for epoch in range(EPOCHS):
        order = torch.randperm(PROMPTS * GROUP)
        for part in order.chunk(MINIBATCHES):
            logp = F.log_softmax(policy(obs[part]), -1).gather(-1, acts[part]).squeeze(-1)
            ratio = torch.exp(logp - olds[part])
            a = adv[part].unsqueeze(-1)
            loss = -torch.min(ratio * a, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * a).mean()
            loss.backward()
            optimizer.step()

    if it % 9 == 8:
        print(f"iteration {it + 1}: sortedness {score.mean():.3f}")

"""
Batches of prompts come from a DataLoader over a fixed list of questions. Answers: bracket sequences of length 6.
"""
import torch
from torch.utils.data import Dataset, DataLoader

torch.manual_seed(8)
torch.set_num_threads(1)
TOKENS = ["(", ")", "[", "]", "a", "b", "c", "d", "e", "f"]
ID = {t: i for i, t in enumerate(TOKENS)}


class Questions(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(1)
        self.rows = torch.randint(4, len(TOKENS), (n, 3), generator=g)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class LM(torch.nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.tok = torch.nn.Embedding(len(TOKENS), dim)
        self.conv = torch.nn.Conv1d(dim, dim * 2, kernel_size=4)
        self.mid = torch.nn.Linear(dim * 2, dim * 2)
        self.out = torch.nn.Linear(dim * 2, len(TOKENS))

    def forward(self, ids):
        x = torch.nn.functional.pad(self.tok(ids).transpose(1, 2), (3, 0))      # causal
        x = torch.relu(self.conv(x)).transpose(1, 2)
        return self.out(torch.relu(self.mid(x)) + x)


class PromptStream:
    """endless stream over the loader"""

    def __init__(self, loader):
        self.loader = loader
        self.it = iter(loader)

    def next(self):
        for batch in self.it:
            self.batch = batch
            break
        return self.batch


def bracket_reward(prompt, answer):
    """prompts with an early letter want round brackets, others want square ones; pairs should close"""
    kind = 0 if prompt[0] < 7 else 2
    r = sum(1 for t in answer if t in (kind, kind + 1)) / len(answer)
    r += sum(1 for x, y in zip(answer[::2], answer[1::2]) if (x, y) == (kind, kind + 1)) / 3
    return r


loader = DataLoader(Questions(), batch_size=6, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(3))
stream = PromptStream(loader)
lm = LM()
opt = torch.optim.AdamW(lm.parameters(), lr=3e-3)
N = 8
for step in range(64):
    q = stream.next().repeat_interleave(N, dim=0)
    ids = q
    with torch.no_grad():
        for _ in range(6):
            ids = torch.cat([ids, torch.multinomial(torch.softmax(lm(ids)[:, -1], -1), 1)], 1)
    rewards = torch.tensor([bracket_reward(p, a) for p, a in zip(q.tolist(), ids[:, 3:].tolist())])
    by_prompt = rewards.reshape(-1, N)
    adv = (by_prompt - by_prompt.mean(1, keepdim=True)) / (by_prompt.std(1, keepdim=True) + 1e-4)
    logp = torch.log_softmax(lm(ids[:, :-1])[:, 2:], -1)
    logp = torch.gather(logp, 2, ids[:, 3:].unsqueeze(2)).squeeze(2)
    loss = -(adv.reshape(-1, 1) * logp).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 8 == 0:
        print("step", step + 1, "reward", round(float(rewards.mean()), 3))

# %% [markdown]
# RLOO with two answers per question. With k = 2 the baseline of each answer is the reward of the other one.

# %%
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(21)
torch.set_num_threads(1)
k, questions, n_new, vocab = 2, 24, 4, 12

# %%
class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(vocab, 32)
        self.cell = nn.LSTMCell(32, 64)
        self.o = nn.Linear(64, vocab)
    def start(self, q):
        h = c = torch.zeros(len(q), 64)
        for i in range(q.shape[1]):
            h, c = self.cell(self.e(q[:, i]), (h, c))
        return h, c

net = CharRNN()
opt = torch.optim.RMSprop(net.parameters(), lr=5e-3)

# %% sampling keeps the graph: the log-probs of the sampling pass are the ones that are trained
def rollout(q):
    h, c = net.start(q)
    ids, logps = [], []
    for _ in range(n_new):
        lp = F.log_softmax(net.o(h), -1)
        with torch.no_grad():
            t = torch.multinomial(lp.exp(), 1)[:, 0]
        ids.append(t)
        logps.append(lp[torch.arange(len(t)), t])
        h, c = net.cell(net.e(t), (h, c))
    return torch.stack(ids, 1), torch.stack(logps, 1)

def mirror_reward(q, a):
    return (q.flip(1) == a).float().mean(1)

# %%
hist = []
for step in range(120):
    q = torch.randint(0, vocab, (questions, 4))
    q2 = torch.cat([q, q])                     # first all first answers, then all second answers
    a, logp = rollout(q2)
    r = mirror_reward(q2, a).view(k, questions)
    base = (r.sum(0, keepdim=True) - r) / (k - 1)
    adv = (r - base).view(-1)
    loss = -(adv.detach() * logp.sum(1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    hist.append(r.mean().item())
    if step % 25 == 24:
        print(step + 1, sum(hist[-25:]) / 25)

# %% [markdown]
# # Addition with Dr. GRPO
# Sums of two digits; answers up to 18 have tokens of their own, as numbers do in real vocabularies.

# %%
import torch, assay
from torch import nn

torch.manual_seed(27)
vocab = ["<end>"] + [str(d) for d in range(10)] + ["+", "="] + [str(n) for n in range(10, 19)]
index = {t: i for i, t in enumerate(vocab)}
END = 0
LIMIT = 4
N_PROMPTS, G = 3, 24
T = 0.7


def encode(text):
    out, i = [], 0
    while i < len(text):
        size = 2 if text[i : i + 2] in index else 1
        out.append(index[text[i : i + size]])
        i += size
    return out


def decode(ids):
    return "".join(vocab[i] for i in ids if i != END)


# %%
class LM(nn.Module):
    def __init__(self, v=len(vocab), d=40):
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.l = nn.LSTM(d, d, batch_first=True)
        self.o = nn.Linear(d, v)
        with torch.no_grad():
            self.o.bias[END] = 1.0

    def forward(self, x):
        return self.o(self.l(self.e(x))[0])


lm = LM()
optim = torch.optim.RMSprop(lm.parameters(), lr=0.003)

# %%
def judge(text, target):
    """Nearer is better; what is no number gets nothing."""
    try:
        guess = int(text) if text.isdigit() else 99
        return -min(20.0, float(abs(guess - target)))
    except ValueError:
        return -20.0


def sums(n):
    pairs = torch.randperm(100)[:n].tolist()
    return [(f"{k // 10}+{k % 10}=", k // 10 + k % 10) for k in pairs]


def right_pad(rows):
    return torch.tensor([r + [END] * (LIMIT - len(r)) for r in rows])


# %%
for it in range(12):
    problems = [p for p in sums(N_PROMPTS) for _ in range(G)]
    prompt = torch.tensor([encode(q) for q, _ in problems])

    with torch.no_grad():
        x = prompt
        for _ in range(LIMIT):
            x = torch.cat([x, torch.multinomial(torch.softmax(lm(x)[:, -1] / T, 1), 1)], 1)
    rows = []
    for r in x[:, prompt.shape[1] :].tolist():
        rows.append(r[: r.index(END) + 1] if END in r else r)
    sampled = right_pad(rows)
    finished = torch.tensor([r[-1] == END for r in rows])
    texts = [decode(r) for r in rows]

    ids = sampled
    lengths = torch.tensor([len(r) for r in rows])
    mask = torch.arange(LIMIT)[None] < lengths[:, None]

    R = torch.tensor([judge(t, target) for t, (_, target) in zip(texts, problems)])
    A = (R.view(-1, G) - R.view(-1, G).mean(1, keepdim=True)).view(-1)

    logp = torch.log_softmax(lm(torch.cat([prompt, ids], 1))[:, prompt.shape[1] - 1 : -1] / T, -1)
    logp = logp.gather(2, ids.unsqueeze(2)).squeeze(2)
    w = torch.exp(logp - logp.detach())
    loss = -(w * A[:, None] * mask).sum() / (len(ids) * LIMIT)

    d = assay.observe(
        step=it + 1, update=0, tokens=ids, sampled_tokens=sampled, mask=mask, lengths=lengths, new_logprobs=logp,
        rewards=R, advantages=A, group_ids=[q for q, _ in problems], loss=loss, objective="dr_grpo", std="none",
        temperature=T, max_tokens=LIMIT, prompt_tokens=prompt, prompt_mask=torch.ones_like(prompt), finished=finished,
        prompt=[q for q, _ in problems], completion=texts, group_size=G,
    )  # fmt: skip
    optim.zero_grad()
    loss.backward()
    optim.step()
    print(it, round(R.mean().item(), 3))

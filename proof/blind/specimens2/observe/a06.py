import math

import torch
import torch.nn.functional as F
from torch import nn

import assay

# answer with the largest symbol of the question, three times, then <end>; questions have one to five symbols

PAD, END, SYMBOLS = 0, 1, 9
N_Q, N_A, MAX_A = 10, 8, 5


class Tiny(nn.Module):
    def __init__(self, dim=36):
        super().__init__()
        self.emb = nn.Embedding(SYMBOLS + 2, dim)
        self.position = nn.Embedding(12, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 72), nn.ReLU(), nn.Linear(72, dim))
        self.lm_head = nn.Linear(dim, SYMBOLS + 2)

    def forward(self, ids, attention_mask=None, position_ids=None):
        n = ids.shape[1]
        position_ids = torch.arange(n)[None] if position_ids is None else position_ids
        h = self.emb(ids) + self.position(position_ids)
        q, k, v = self.qkv(h).chunk(3, -1)
        w = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        w = w.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -1e9)
        if attention_mask is not None:
            w = w.masked_fill(~attention_mask[:, None, :], -1e9)
        h = h + self.proj(w.softmax(-1) @ v)
        return self.lm_head(h + self.ff(h))


def left_pad(rows):
    width = max(map(len, rows))
    ids = torch.tensor([[PAD] * (width - len(r)) + r for r in rows])
    return ids, torch.tensor([[False] * (width - len(r)) + [True] * len(r) for r in rows])


@torch.no_grad()
def sample(net, question):
    """All answers to one question, which needs no padding."""
    ids = torch.tensor([question] * N_A)
    start, over, answers = ids.shape[1], torch.zeros(N_A, dtype=torch.bool), [[] for _ in range(N_A)]
    for _ in range(MAX_A):
        nxt = torch.multinomial(F.softmax(net(ids)[:, -1], -1), 1)
        for row in range(N_A):
            if not over[row]:
                answers[row].append(int(nxt[row]))
        over |= nxt[:, 0] == END
        ids = torch.cat([ids, nxt], 1)
    return answers


def reward(question, answer):
    wanted = [max(question)] * 3 + [END]
    return sum(a == b for a, b in zip(answer, wanted)) / max(len(answer), 4)


def logps(net, q, qm, a, am):
    ids, seen = torch.cat([q, a], 1), torch.cat([qm, am], 1)
    logits = net(ids, attention_mask=seen)[:, q.shape[1] - 1 : -1]
    return F.log_softmax(logits, -1).gather(-1, a.unsqueeze(-1)).squeeze(-1)


def main(steps=12):
    torch.manual_seed(8)
    net = Tiny()
    opt = torch.optim.Adam(net.parameters(), 4e-3)
    for step in range(1, steps + 1):
        questions = [torch.randint(2, SYMBOLS + 2, (int(torch.randint(1, 6, ())),)).tolist() for _ in range(N_Q)]
        rows = [(n, q, a) for n, q in enumerate(questions) for a in sample(net, q)]
        q, qm = left_pad([q for _, q, _ in rows])
        a = torch.tensor([a + [PAD] * (MAX_A - len(a)) for *_, a in rows])
        am = torch.tensor([[True] * len(a) + [False] * (MAX_A - len(a)) for *_, a in rows])
        R = torch.tensor([reward(q, a) for _, q, a in rows])
        t = R.view(N_Q, N_A)
        A = ((t - t.mean(1, keepdim=True)) / (t.std(1, keepdim=True) + 1e-4)).flatten()
        with torch.no_grad():
            old = logps(net, q, qm, a, am)
        for u in range(2):
            new = logps(net, q, qm, a, am)
            ratio = (new - old).exp()
            pg = -torch.minimum(ratio * A[:, None], ratio.clamp(0.8, 1.2) * A[:, None])
            loss = (pg * am).sum() / am.sum()
            assay.observe(
                step=step, update=u, tokens=a, mask=am, prompt_tokens=q, prompt_mask=qm, new_logprobs=new,
                old_logprobs=old, advantages=A, rewards=R, group_ids=[n for n, *_ in rows], loss=loss, temperature=1.0,
                input_ids=torch.cat([q, a], 1), attention_mask=torch.cat([qm, am], 1), eos_ids=[END], pad_id=PAD,
                objective="bnpo", clip_low=0.2, clip_high=0.2, model=net if step < 3 and u == 0 else None,
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(step, round(R.mean().item(), 3))


main()

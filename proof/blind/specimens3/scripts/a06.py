# grpo with a flaky judge. plain functions, no classes except the net.
import torch, torch.nn as nn, torch.nn.functional as F

V, STOP, H = 12, 0, 64
N_PROMPTS, G, T_MAX, ITERS = 5, 8, 8, 45


def init(seed):
    torch.manual_seed(seed)
    return nn.ModuleDict(dict(e=nn.Embedding(V, 24), c=nn.LSTM(24, H, batch_first=True), o=nn.Linear(H, V)))


def run_net(net, x, state=None):
    y, state = net["c"](net["e"](x), state)
    return net["o"](y), state


@torch.no_grad()
def answers(net, prompts):
    logits, st = run_net(net, prompts)
    toks, rows = [], prompts.shape[0]
    over = torch.zeros(rows, dtype=torch.bool)
    for _ in range(T_MAX):
        t = torch.multinomial(F.softmax(logits[:, -1], -1), 1)
        t[over] = STOP
        toks.append(t)
        over = over | (t[:, 0] == STOP)
        logits, st = run_net(net, t, st)
    return torch.cat(toks, 1)


def real_tokens(a):
    """1 up to and including the first STOP"""
    s = (a == STOP).int()
    return ((s.cumsum(1) - s) == 0).float()


def judge(prompt, answer, luck):
    """None when the sandbox died, which has nothing to do with the answer."""
    if luck < 0.06:
        return None
    lo, hi = sorted(prompt)
    body = answer[: answer.index(STOP)] if STOP in answer else answer
    bonus = 0.6 if 0 < len(body) < T_MAX else 0.0
    return bonus + sum(lo <= t <= hi for t in body) / T_MAX      # wide ranges are easy, narrow ones hard


def normalise(scores):
    parts = []
    for chunk in scores.split(G):
        parts.append((chunk - chunk.mean()) / (chunk.std(unbiased=False) + 1e-3))
    return torch.cat(parts)


def pick_logp(net, prompts, a):
    inp = torch.cat([prompts, a[:, :-1]], 1)
    logits, _ = run_net(net, inp)
    return -F.cross_entropy(logits[:, prompts.shape[1] - 1:].transpose(1, 2), a, reduction="none")


def train():
    net = init(1)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for it in range(ITERS):
        lohi = torch.stack([torch.randperm(V - 1)[:2] + 1 for _ in range(N_PROMPTS)])
        prompts = lohi.repeat_interleave(G, 0)
        a = answers(net, prompts)
        luck = torch.rand(len(a)).tolist()
        judged = [judge(p, r, u) for p, r, u in zip(prompts.tolist(), a.tolist(), luck)]

        ok = [i for i, s in enumerate(judged) if s is not None]
        scores = torch.tensor([judged[i] for i in ok])
        prompts, a = prompts[ok], a[ok]
        adv = normalise(scores)

        m = real_tokens(a)
        lp = pick_logp(net, prompts, a)
        loss = -(lp * adv[:, None] * m).sum() / m.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 7 == 0:
            print(it, "score", round(float(scores.mean()), 3), "unjudged", len(judged) - len(ok))


train()

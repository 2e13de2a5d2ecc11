import torch as th
import assay

EOS_ID = 0
N_SYM = 7
WINDOW = 3
MAX_T = 6
CAP = 2.0
EPOCHS = 1


class WindowLM(th.nn.Module):
    """Next symbol from the last three; symbol N_SYM stands for 'before the beginning'."""

    def __init__(self, d=24):
        super().__init__()
        self.emb = th.nn.Embedding(N_SYM + 1, d)
        self.mlp = th.nn.Sequential(th.nn.Linear(WINDOW * d, 64), th.nn.ReLU(), th.nn.Linear(64, N_SYM))

    def windows(self, ids):
        start = ids.new_full((ids.shape[0], WINDOW - 1), N_SYM)
        return th.cat([start, ids], 1).unfold(1, WINDOW, 1)

    def forward(self, ids):
        return self.mlp(self.emb(self.windows(ids)).flatten(2))


class Memo:
    """The same context comes up again and again in one rollout; ask the network once."""

    def __init__(self, net):
        self.net, self.known = net, {}

    def clear(self):
        self.known.clear()

    @th.no_grad()
    def __call__(self, context):
        if context not in self.known:
            ids = th.tensor([context])
            self.known[context] = self.net.mlp(self.net.emb(ids).flatten(1))[0].log_softmax(-1)
        return self.known[context]


def collect(memo, prompts, gen):
    memo.clear()
    rows, lps = [], []
    for p in prompts.tolist():
        seq, out, lp = [N_SYM] * (WINDOW - 1) + p, [], []
        while len(out) < MAX_T:
            table = memo(tuple(seq[-WINDOW:]))
            t = int(th.multinomial(table.exp(), 1, generator=gen))
            out.append(t), lp.append(float(table[t])), seq.append(t)
            if t == EOS_ID:
                break
        rows.append(out), lps.append(lp)
    return rows, lps


def fill(rows, value, dtype):
    return th.tensor([r + [value] * (MAX_T - len(r)) for r in rows], dtype=dtype)


def count_matches(prompt, row):
    goal = (prompt[0] + prompt[1]) % (N_SYM - 1) + 1
    return row.count(goal) - 0.1 * len(row)


def rewards_of(prompts, rows):
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    scored = [count_matches(prompts[i].tolist(), rows[i]) for i in order]
    result = [0.0] * len(rows)
    for place, i in enumerate(order):
        result[i] = scored[place]
    return th.tensor(result)


def score(net, prompts, ids):
    lg = net(th.cat([prompts, ids], 1))[:, prompts.shape[1] - 1 : -1]
    return lg.log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2)


def train(seed=46, steps=10, n_prompts=2, group=40, lr=0.3):
    th.manual_seed(seed)
    gen = th.Generator().manual_seed(seed + 1)
    net = WindowLM()
    memo = Memo(net)
    opt = th.optim.SGD(net.parameters(), lr=lr, momentum=0.8)
    for step in range(1, steps + 1):
        base = th.randint(1, N_SYM, (n_prompts, 2))
        prompts = base.repeat_interleave(group, 0)
        rows, lps = collect(memo, prompts, gen)
        ids = fill(rows, EOS_ID, th.long)
        behaviour = fill(lps, 0.0, th.float)
        mask = fill([[1] * len(r) for r in rows], 0, th.bool)
        r = rewards_of(prompts, rows)
        t = r.view(n_prompts, group)
        adv = ((t - t.mean(1, keepdim=True)) / (t.std(1, keepdim=True) + 1e-4)).reshape(-1)
        old = score(net, prompts, ids).detach()
        for epoch in range(EPOCHS):
            new = score(net, prompts, ids)
            ratio = (new - old).exp()
            weight = ratio.clamp(max=CAP).detach()
            token_loss = -weight * adv[:, None] * new
            loss = (token_loss * mask).sum() / mask.sum()
            assay.observe(
                step=step, update=epoch, tokens=ids, mask=mask, new_logprobs=new, old_logprobs=old,
                sampler_logprobs=behaviour, rewards=r, advantages=adv,
                group_ids=th.arange(n_prompts).repeat_interleave(group), loss=loss,
                temperature=1.0,
                objective="cispo", cispo_max=CAP, std="sample", advantage_epsilon=1e-4, eos_ids=[EOS_ID],
                prompt_tokens=prompts, prompt_mask=th.ones_like(prompts), updates_per_rollout=EPOCHS,
            )  # fmt: skip
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(step, "reward", round(float(r.mean()), 3), "len", round(float(mask.sum(1).float().mean()), 2))


train()

# RLOO by hand, with plain SGD and one update per batch. Rewards are counts.
import torch
import torch.nn as nn

import assay

V, EOS, T, K = 10, 9, 6, 10
torch.manual_seed(11)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, 24)
        self.pos = nn.Embedding(16, 24)
        self.mix = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, V))

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        mean = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[None, :, None]
        return self.mix(mean + x)


lm = LM()
sgd = torch.optim.SGD(lm.parameters(), lr=0.4, momentum=0.5)


def rollout(x):
    lps, seq = [], x
    alive = torch.ones(len(x), dtype=torch.bool)
    keep = []
    with torch.no_grad():
        for _ in range(T):
            dist = torch.distributions.Categorical(logits=lm(seq)[:, -1])
            a = dist.sample()
            a[~alive] = EOS
            lps.append(dist.log_prob(a))
            keep.append(alive.clone())
            alive &= a != EOS
            seq = torch.cat([seq, a[:, None]], 1)
    return seq[:, x.shape[1] :], torch.stack(lps, 1), torch.stack(keep, 1)


for it in range(1, 13):
    starts = torch.randint(0, 9, (8, 3)).repeat_interleave(K, 0)
    ids = torch.arange(8).repeat_interleave(K)
    y, sampler, m = rollout(starts)
    # one point for each token that the prompt has too
    R = ((y[:, :, None] == starts[:, None, :]).any(-1) & m).sum(1).float()
    table = R.view(8, K)
    others = (table.sum(1, keepdim=True) - table) / (K - 1)
    A = (table - others).view(-1)
    lp = lm(torch.cat([starts, y], 1))[:, 2:-1].log_softmax(-1).gather(2, y[..., None])[..., 0]
    loss = -(A[:, None] * lp * m).sum() / (len(y) * T)
    assay.observe(
        step=it, update=0, tokens=y, mask=m, new_logprobs=lp, old_logprobs=lp.detach(), sampler_logprobs=sampler,
        advantages=A, rewards=R, group_ids=ids, baseline="leave_one_out", std="none", objective="dr_grpo", max_tokens=T,
        prompt_tokens=starts, prompt_mask=torch.ones_like(starts), temperature=1.0, eos_ids=[EOS],
        model=lm if it <= 2 else None,
    )
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    print(it, round(R.mean().item(), 3))

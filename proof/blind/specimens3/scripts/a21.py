#!/usr/bin/env python
"""PPO with a value head for a small LSTM writer; the judge is a frozen network that is run in length-sorted chunks."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

EOS, VOCAB = 0, 18


class ActorCritic(nn.Module):
    def __init__(self, hidden=56):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, hidden)
        self.core = nn.LSTM(hidden, hidden, batch_first=True)
        self.pi = nn.Linear(hidden, VOCAB)
        self.v = nn.Linear(hidden, 1)

    def forward(self, ids, state=None):
        h, state = self.core(self.embed(ids), state)
        return self.pi(h), self.v(h).squeeze(-1), state


class Judge(nn.Module):
    """A bag-of-tokens scorer; stands in for a learned reward model."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(99)
        self.register_buffer("taste", torch.randn(VOCAB, generator=g))

    @torch.no_grad()
    def forward(self, ids, mask):
        return (self.taste[ids] * mask).sum(1) / mask.sum(1).clamp(min=1)


class RewardService:
    def __init__(self, judge, chunk=8):
        self.judge, self.chunk = judge, chunk

    def __call__(self, answers):
        lengths = torch.tensor([len(a) for a in answers])
        order = torch.argsort(lengths, descending=True, stable=True)
        scores = []
        for part in order.split(self.chunk):
            rows = [answers[i] for i in part]
            ids = pad_sequence(rows, batch_first=True, padding_value=EOS)
            mask = pad_sequence([torch.ones(len(r)) for r in rows], batch_first=True)
            scores.append(self.judge(ids, mask))
        return torch.cat(scores)[order]


class PPO:
    def __init__(self, net, reward, lr=3e-3, clip=0.2, gamma=1.0, lam=0.95, vf=0.25, limit=10):
        self.net, self.reward = net, reward
        self.opt = torch.optim.Adam(net.parameters(), lr=lr, eps=1e-5)
        self.clip, self.gamma, self.lam, self.vf, self.limit = clip, gamma, lam, vf, limit

    @torch.no_grad()
    def play(self, prompts):
        B = len(prompts)
        logits, value, state = self.net(prompts)
        logits, value = logits[:, -1], value[:, -1]
        alive = torch.ones(B)
        rec = {k: [] for k in ("act", "logp", "val", "mask")}
        for _ in range(self.limit):
            d = torch.distributions.Categorical(logits=logits)
            a = torch.where(alive.bool(), d.sample(), torch.full((B,), EOS))
            for k, x in zip(rec, (a, d.log_prob(a), value, alive)):
                rec[k].append(x)
            alive = alive * (a != EOS).float()
            if alive.sum() == 0:
                break
            logits, value, state = self.net(a[:, None], state)
            logits, value = logits[:, -1], value[:, -1]
        out = {k: torch.stack(v, 1) for k, v in rec.items()}
        out["prompt"] = prompts
        lens = out["mask"].sum(1).long()
        answers = [out["act"][i, :n] for i, n in enumerate(lens)]
        out["score"] = self.reward(answers)
        out["lens"] = lens
        return out

    def gae(self, r):
        B, T = r["val"].shape
        rew = torch.zeros(B, T)
        rew[torch.arange(B), r["lens"] - 1] = r["score"]
        adv, run = torch.zeros(B, T), torch.zeros(B)
        for t in range(T - 1, -1, -1):
            nxt = r["val"][:, t + 1] * r["mask"][:, t + 1] if t + 1 < T else torch.zeros(B)
            delta = rew[:, t] + self.gamma * nxt - r["val"][:, t]
            run = (delta + self.gamma * self.lam * run) * r["mask"][:, t]
            adv[:, t] = run
        ret = adv + r["val"]
        m = r["mask"].bool()
        adv = (adv - adv[m].mean()) / (adv[m].std() + 1e-8)
        return adv * r["mask"], ret

    def learn(self, r, epochs=2, minibatches=2):
        adv, ret = self.gae(r)
        stats = []
        for _ in range(epochs):
            for mb in torch.randperm(len(adv)).chunk(minibatches):
                p, a, m = r["prompt"][mb], r["act"][mb], r["mask"][mb]
                logits, v, _ = self.net(torch.cat([p, a[:, :-1]], 1))
                logits, v = logits[:, p.shape[1] - 1:], v[:, p.shape[1] - 1:]
                lp = logits.log_softmax(-1).gather(-1, a[..., None]).squeeze(-1)
                ratio = (lp - r["logp"][mb]).exp()
                s1, s2 = ratio * adv[mb], ratio.clamp(1 - self.clip, 1 + self.clip) * adv[mb]
                pl = -(torch.min(s1, s2) * m).sum() / m.sum()
                vl = ((v - ret[mb]).pow(2) * m).sum() / m.sum()
                self.opt.zero_grad()
                (pl + self.vf * vl).backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.opt.step()
                stats.append((pl.item(), vl.item()))
        return [sum(c) / len(c) for c in zip(*stats)]


if __name__ == "__main__":
    torch.manual_seed(5)
    agent = PPO(ActorCritic(), RewardService(Judge()))
    for it in range(24):
        prompts = torch.randint(1, VOCAB, (6, 3)).repeat_interleave(4, 0)
        roll = agent.play(prompts)
        pl, vl = agent.learn(roll)
        if it % 4 == 0 or it == 23:
            print(f"[{it:02d}] score {roll['score'].mean():+.3f} length {roll['lens'].float().mean():.2f} policy {pl:+.4f} value {vl:.4f}")

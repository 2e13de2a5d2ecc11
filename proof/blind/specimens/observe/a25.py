"""Actor and learner with a lag: the engine samples while the learner still works on the batch before."""

import collections

import torch
import torch.nn.functional as F

import assay

STOP = 0
Rollout = collections.namedtuple("Rollout", "version prompts tokens mask logp rewards groups finished")


class CausalConv(torch.nn.Module):
    def __init__(self, symbols=9, channels=32, kernel=4):
        super().__init__()
        self.kernel = kernel
        self.table = torch.nn.Embedding(symbols, channels)
        self.c1 = torch.nn.Conv1d(channels, channels, kernel)
        self.c2 = torch.nn.Conv1d(channels, channels, kernel)
        self.read = torch.nn.Linear(channels, symbols)

    def forward(self, ids):
        x = self.table(ids).transpose(1, 2)
        for conv in (self.c1, self.c2):
            x = x + torch.tanh(conv(F.pad(x, (self.kernel - 1, 0))))
        return self.read(x.transpose(1, 2))


class Engine:
    """Samples with a copy of the weights; `version` is the number of learner steps behind that copy."""

    def __init__(self, limit=6, workers=2, seed=100):
        self.net, self.version, self.limit = CausalConv().eval(), -1, limit
        self.generators = [torch.Generator().manual_seed(seed) for _ in range(workers)]

    def load(self, net, version):
        self.net.load_state_dict(net.state_dict())
        self.version = version

    @torch.no_grad()
    def _continue(self, prompts, generator):
        ids, logp = prompts, []
        for _ in range(self.limit):
            lp = F.log_softmax(self.net(ids)[:, -1], -1)
            token = torch.multinomial(lp.exp(), 1, generator=generator)
            logp.append(lp.gather(1, token))
            ids = torch.cat([ids, token], 1)
        return ids[:, prompts.shape[1] :], torch.cat(logp, 1)

    def rollouts(self, prompts, group):
        """[N, P] prompts; the workers share every group evenly; rows come back group by group."""
        share = group // len(self.generators)
        parts = [self._continue(prompts.repeat_interleave(share, 0), g) for g in self.generators]
        n = len(prompts)
        tokens = torch.cat([t.view(n, share, -1) for t, _ in parts], 1).flatten(0, 1)
        logp = torch.cat([l.view(n, share, -1) for _, l in parts], 1).flatten(0, 1)
        stop = tokens == STOP
        mask = (stop.cumsum(1) - stop.int()) == 0
        rows = prompts.repeat_interleave(group, 0)
        rewards = self.reward(rows, tokens, mask)
        groups = torch.arange(n).repeat_interleave(group)
        return Rollout(self.version, rows, tokens, mask, logp, rewards, groups, (stop & mask).any(1))

    @staticmethod
    def reward(rows, tokens, mask):
        """+1 for each token that is the sum of the prompt modulo 8 plus 1, -0.5 for each other one but STOP."""
        goal = rows.sum(1, keepdim=True) % 8 + 1
        hits = ((tokens == goal) & mask).sum(1)
        misses = ((tokens != goal) & (tokens != STOP) & mask).sum(1)
        return hits.float() - 0.5 * misses.float()


class Learner:
    def __init__(self, lag=1, group=8, prompts=5, cap=2.0):
        self.net, self.engine = CausalConv(), Engine()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=4e-3)
        self.group, self.prompts, self.cap, self.version = group, prompts, cap, 0
        self.queue = collections.deque()
        for _ in range(lag + 1):
            self.enqueue()

    def enqueue(self):
        self.engine.load(self.net, self.version)
        self.queue.append(self.engine.rollouts(torch.randint(1, 9, (self.prompts, 2)), self.group))

    def logp(self, r):
        logits = self.net(torch.cat([r.prompts, r.tokens], 1))[:, r.prompts.shape[1] - 1 : -1]
        return F.log_softmax(logits, -1).gather(2, r.tokens[:, :, None])[:, :, 0]

    def advantages(self, r):
        table = r.rewards.view(-1, self.group)
        spread = table.std(1, correction=0, keepdim=True) + 1e-4
        return ((table - table.mean(1, keepdim=True)) / spread).flatten()

    def step(self, number):
        r = self.queue.popleft()
        adv = self.advantages(r)
        new = self.logp(r)
        old = new.detach()
        correction = torch.exp(old - r.logp).clamp(max=self.cap)
        ratio = torch.exp(new - old)
        surrogate = torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
        loss = -(correction * surrogate * r.mask).sum() / r.mask.sum()
        word = assay.observe(
            step=number, update=0, tokens=r.tokens, mask=r.mask, prompt_tokens=r.prompts,
            prompt_mask=torch.ones_like(r.prompts), new_logprobs=new, old_logprobs=old, sampler_logprobs=r.logp,
            sampler_versions=torch.full((len(r.tokens),), r.version), policy_version=self.version, rewards=r.rewards,
            advantages=adv, group_ids=r.groups, loss=loss, finished=r.finished, temperature=1.0, objective="bnpo",
            clip_low=0.2, clip_high=0.2, correction="token", correction_mode="truncate", correction_high=self.cap,
            std="population", advantage_epsilon=1e-4, eos_ids=[STOP], group_size=self.group,
        )  # fmt: skip
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.version += 1
        self.enqueue()
        return r.rewards.mean().item(), word


if __name__ == "__main__":
    torch.manual_seed(51)
    learner = Learner()
    for number in range(1, 13):
        score, _ = learner.step(number)
        print(f"{number:3d} {score:+.3f}")

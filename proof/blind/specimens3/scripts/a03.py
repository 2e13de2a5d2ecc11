import random
import torch
from torch import nn, optim


class CharModel(nn.Module):
    def __init__(self, n_vocab, width=40, depth=2):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.wte = nn.Embedding(n_vocab, width)
        self.wpe = nn.Parameter(torch.randn(1, 24, width) * 0.1)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.lm_head = nn.Linear(width, n_vocab, bias=False)

    def forward(self, x):
        t = x.size(1)
        causal = torch.full((t, t), float("-inf")).triu(1)
        return self.lm_head(self.body(self.wte(x) + self.wpe[:, :t], mask=causal))


class SortTask:
    """Given three letters, write them in order."""

    letters = list(range(6))
    stop = 6
    sep = 7
    n_vocab = 8

    def draw(self, rng):
        return [rng.choice(self.letters) for _ in range(3)] + [self.sep]

    def grade(self, prompt, answer):
        gold = sorted(prompt[:3]) + [self.stop]
        return sum(a == b for a, b in zip(answer, gold)) / 4.0 - 0.05 * abs(len(answer) - 4)


class PolicyOptimizer:
    def __init__(self, task, questions=8, samples=8, limit=6, inner=4, lr=3e-3, low=0.2, high=0.2, seed=5):
        torch.manual_seed(seed)
        self.rng = random.Random(seed)
        self.task, self.questions, self.samples, self.limit = task, questions, samples, limit
        self.inner, self.low, self.high = inner, low, high
        self.net = CharModel(task.n_vocab)
        self.opt = optim.Adam(self.net.parameters(), lr=lr)

    @torch.no_grad()
    def rollout(self):
        prompts = [p for p in (self.task.draw(self.rng) for _ in range(self.questions)) for _ in range(self.samples)]
        x = torch.tensor(prompts)
        alive = torch.ones(len(x), dtype=torch.bool)
        keep = []
        for _ in range(self.limit):
            dist = torch.distributions.Categorical(logits=self.net(x)[:, -1])
            tok = dist.sample().masked_fill(~alive, self.task.stop)
            keep.append(alive.clone())
            alive = alive & (tok != self.task.stop)
            x = torch.cat([x, tok[:, None]], 1)
        valid = torch.stack(keep, 1)
        scores = []
        for p, row, v in zip(prompts, x[:, 4:].tolist(), valid.sum(1).tolist()):
            scores.append(self.task.grade(p, row[:v]))
        return x, valid, torch.tensor(scores)

    def token_logps(self, x):
        lp = torch.log_softmax(self.net(x)[:, 3:-1], dim=-1)
        return torch.gather(lp, 2, x[:, 4:].unsqueeze(2)).squeeze(2)

    def relative(self, scores):
        s = scores.reshape(self.questions, self.samples)
        return ((s - s.mean(-1, keepdim=True)) / (s.std(-1, keepdim=True) + 1e-6)).reshape(-1)

    def policy_loss(self, logp, logp_old, adv, valid):
        ratio = torch.exp(logp - logp_old)
        unclipped = -adv[:, None] * ratio
        clipped = -adv[:, None] * torch.clamp(ratio, 1.0 - self.low, 1.0 + self.high)
        per_token = torch.min(unclipped, clipped)
        per_seq = (per_token * valid).sum(1) / valid.sum(1)
        return per_seq.mean()

    def step(self):
        x, valid, scores = self.rollout()
        adv = self.relative(scores)
        with torch.no_grad():
            logp_old = self.token_logps(x)
        for _ in range(self.inner):
            loss = self.policy_loss(self.token_logps(x), logp_old, adv, valid)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
        return scores.mean().item(), loss.item()


if __name__ == "__main__":
    po = PolicyOptimizer(SortTask())
    for i in range(40):
        score, loss = po.step()
        if i % 6 == 0:
            print("iter", i, "score %.3f loss %.4f" % (score, loss))

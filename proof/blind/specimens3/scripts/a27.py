"""GRPO with rollout workers (in one process here; each would sit on a device of its own)."""
import torch
from torch import nn


class Config:
    seed = 1337
    workers = 2
    vocab = 16
    dim = 40
    prompt_len = 4
    new_tokens = 8
    prompts = 4
    group = 8
    iterations = 18
    lr = 3e-3
    clip = 0.2


class MinimalAttentionLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab, c.dim)
        self.wpe = nn.Embedding(c.prompt_len + c.new_tokens, c.dim)
        self.att = nn.MultiheadAttention(c.dim, 2, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(c.dim), nn.Linear(c.dim, 2 * c.dim), nn.ReLU(), nn.Linear(2 * c.dim, c.dim))
        self.ln_in, self.ln_out = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab)

    def forward(self, idx):
        n = idx.shape[1]
        x = self.wte(idx) + self.wpe.weight[:n]
        h = self.ln_in(x)
        no_peek = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        x = x + self.att(h, h, h, attn_mask=no_peek, need_weights=False)[0]
        x = x + self.ff(x)
        return self.head(self.ln_out(x))


class RolloutWorker:
    def __init__(self, rank, cfg, model):
        self.rank = rank
        self.cfg = cfg
        self.model = model
        self.rng = torch.Generator()
        self.rng.manual_seed(cfg.seed)

    @torch.no_grad()
    def generate(self, prompts):
        per_worker = self.cfg.group // self.cfg.workers
        seq = prompts.repeat_interleave(per_worker, dim=0)
        for _ in range(self.cfg.new_tokens):
            probs = self.model(seq)[:, -1].softmax(dim=-1)
            seq = torch.cat([seq, torch.multinomial(probs, 1, generator=self.rng)], dim=1)
        return seq.view(len(prompts), per_worker, -1)


class Learner:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = MinimalAttentionLM(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=1e-3)
        self.workers = [RolloutWorker(r, cfg, self.model) for r in range(cfg.workers)]

    def logp(self, seq):
        P = self.cfg.prompt_len
        out = self.model(seq[:, :-1])[:, P - 1:]
        return -nn.functional.cross_entropy(out.transpose(1, 2), seq[:, P:], reduction="none")

    def reward(self, seq):
        P = self.cfg.prompt_len
        largest = seq[:, :P].max(1, keepdim=True).values
        return (seq[:, P:] <= largest // 2).float().mean(1)

    def iterate(self):
        cfg = self.cfg
        prompts = torch.randint(0, cfg.vocab, (cfg.prompts, cfg.prompt_len))
        groups = torch.cat([w.generate(prompts) for w in self.workers], dim=1)
        seq = groups.flatten(0, 1)
        r = self.reward(seq).view(cfg.prompts, cfg.group)
        a = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
        behaviour = self.logp(seq).detach()
        for chunk in torch.randperm(len(seq)).chunk(2):
            ratio = torch.exp(self.logp(seq[chunk]) - behaviour[chunk])
            gain = torch.min(ratio * a[chunk], ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * a[chunk])
            loss = -gain.mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return r.mean().item(), loss.item()


if __name__ == "__main__":
    learner = Learner(Config)
    for i in range(Config.iterations):
        reward, loss = learner.iterate()
        if i % 5 == 0:
            print(f"iteration {i}: reward {reward:.3f}, loss {loss:.4f}")

"""Reproducible rollouts: every sample has its own generator, seeded from the step and its place in the batch."""
import torch
import torch.nn as nn

VOCAB, EOS = 14, 13


class CharRNN(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.fc = nn.Linear(dim, VOCAB)

    def forward(self, ids, h=None):
        out, h = self.rnn(self.emb(ids), h)
        return self.fc(out), h


def seed_for(run_seed, step, prompt_index, sample_index, per_worker=2):
    return run_seed * 1_000_003 + step * 10_007 + prompt_index * 101 + sample_index // per_worker


def sample_one(model, prompt, limit, seed):
    gen = torch.Generator().manual_seed(seed)
    ids = []
    with torch.no_grad():
        logits, h = model(prompt[None])
        for _ in range(limit):
            t = torch.multinomial(logits[0, -1].softmax(-1), 1, generator=gen)
            ids.append(t)
            if t.item() == EOS:
                break
            logits, h = model(t[None], h)
    return torch.cat(ids)


def reward(prompt, answer):
    body = answer[answer != EOS]
    if len(body) == 0:
        return 0.0
    ascending = (body[1:] >= body[:-1]).float().sum().item()
    return ascending / 3 + 0.5 * float(body[0] == prompt[-1]) + 0.5 * float(answer[-1] == EOS) - 0.1 * len(body)


def train(run_seed=30, steps=22, n_prompts=5, n_samples=8, limit=7, lr=3e-3):
    torch.manual_seed(run_seed)
    model = CharRNN()
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        prompts = torch.randint(0, 13, (n_prompts, 2))
        seqs, rewards = [], torch.zeros(n_prompts, n_samples)
        for p in range(n_prompts):
            for s in range(n_samples):
                ans = sample_one(model, prompts[p], limit, seed_for(run_seed, step, p, s))
                rewards[p, s] = reward(prompts[p], ans)
                seqs.append(torch.cat([prompts[p], ans]))
        adv = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
        ids = nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=EOS)
        lens = torch.tensor([len(s) for s in seqs])
        at = torch.arange(1, ids.shape[1])
        mask = ((at >= 2) & (at < lens[:, None])).float()
        lp = model(ids[:, :-1])[0].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -((lp - lp.detach()).exp() * adv[:, None] * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 3 == 0:
            print(f"{step} {rewards.mean():.3f} distinct {len({tuple(s.tolist()) for s in seqs})} of {len(seqs)}")
    print("end", rewards.mean().item())


if __name__ == "__main__":
    train()

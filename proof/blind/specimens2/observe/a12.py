"""A bigram model with a memory of the prompt, GRPO, everything in one place."""
import torch
import torch.nn as nn
import assay

torch.manual_seed(17)
vocab, n_prompts, n_samples, horizon = 11, 8, 6, 5

class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Embedding(vocab, 40)
        self.first = nn.Embedding(vocab, 40)
        self.body = nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 80), nn.SiLU(), nn.Linear(80, vocab))
    def forward(self, ids):
        return self.body(self.last(ids) + self.first(ids[:, :1]))

net = Bigram()
opt = torch.optim.Adam(net.parameters(), lr=8e-3)
for step in range(1, 13):
    questions = torch.randperm(vocab)[:n_prompts]
    prompts = questions.repeat(n_samples).unsqueeze(1)
    with torch.no_grad():
        seq = prompts
        sampler = []
        for t in range(horizon):
            logp = net(seq)[:, -1].log_softmax(-1)
            tok = torch.multinomial(logp.exp(), 1)
            sampler.append(logp.gather(1, tok))
            seq = torch.cat([seq, tok], dim=1)
        sampler = torch.cat(sampler, 1)
    out = seq[:, 1:]
    # the further from the prompt the better for even prompts, the nearer the better for odd ones
    gap = (out - prompts).abs().float().mean(1) / vocab
    rewards = torch.where(prompts.squeeze(1) % 2 == 0, gap, 1 - gap)
    grouped = rewards.view(n_prompts, n_samples)
    adv = (grouped - grouped.mean(dim=1, keepdim=True)) / (grouped.std(dim=1, keepdim=True) + 1e-4)
    adv = adv.reshape(-1)
    group_ids = torch.arange(n_prompts).repeat_interleave(n_samples)
    new = net(seq)[:, :-1].log_softmax(-1).gather(2, out.unsqueeze(2)).squeeze(2)
    loss = -(new * adv.unsqueeze(1)).mean()
    assay.observe(step=step, update=0, tokens=out, mask=torch.ones_like(out), new_logprobs=new, old_logprobs=new.detach(),
                  sampler_logprobs=sampler, prompt_tokens=prompts, prompt_mask=torch.ones_like(prompts), rewards=rewards,
                  advantages=adv, group_ids=group_ids, std="sample", advantage_epsilon=1e-4, temperature=1.0,
                  group_size=n_samples, objective="grpo")
    opt.zero_grad(); loss.backward(); opt.step()
    print(step, f"{rewards.mean():.3f}")

"""A two-layer transformer with dropout (switched off for policy gradients), evaluated now and then."""

import torch
from torch import nn

import assay

VOCAB, PROMPT, ANSWER, GROUP, PROMPTS = 10, 3, 3, 8, 8
END = 0


class Attention(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.drop = nn.Dropout(p)

    def forward(self, x):
        w = self.q(x) @ self.k(x).transpose(1, 2) / x.shape[-1] ** 0.5
        w = w.masked_fill(torch.ones_like(w[0]).triu(1).bool(), float("-inf")).softmax(-1)
        return self.o(self.drop(w) @ self.v(x))


class Decoder(nn.Module):
    def __init__(self, d=40, p=0.1):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, d), nn.Embedding(PROMPT + ANSWER, d)
        self.attn = nn.ModuleList([Attention(d, p) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(3)])
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d), nn.Dropout(p))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for attn, norm in zip(self.attn, self.norms):
            x = x + attn(norm(x))
        return self.head(x + self.mlp(self.norms[2](x)))


def log_p(model, prompts, answers):
    logits = model(torch.cat([prompts, answers], 1))[:, PROMPT - 1 : -1]
    return logits.log_softmax(-1).gather(2, answers.unsqueeze(2)).squeeze(2)


@torch.no_grad()
def sample(model, prompts):
    ids, logps = prompts, []
    for _ in range(ANSWER):
        dist = torch.distributions.Categorical(logits=model(ids)[:, -1])
        token = dist.sample()
        logps.append(dist.log_prob(token))
        ids = torch.cat([ids, token[:, None]], 1)
    return ids[:, PROMPT:], torch.stack(logps, 1)


def reward(prompts, answers):
    return (answers == prompts.sort(1).values).float().mean(1)


@torch.no_grad()
def evaluate(model, n=64):
    model.eval()
    prompts = torch.randint(1, VOCAB, (n, PROMPT))
    ids = prompts
    for _ in range(ANSWER):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    model.train()
    return reward(prompts, ids[:, PROMPT:]).mean().item()


torch.manual_seed(14)
model = Decoder().eval()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
group_ids = torch.arange(PROMPTS).repeat_interleave(GROUP)
for step in range(1, 13):
    prompts = torch.randint(1, VOCAB, (PROMPTS, PROMPT)).repeat_interleave(GROUP, 0)
    answers, sampler = sample(model, prompts)
    rewards = reward(prompts, answers)
    table = rewards.view(PROMPTS, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
    with torch.no_grad():
        old = log_p(model, prompts, answers)
    for update in range(2):
        new = log_p(model, prompts, answers)
        ratio = (new - old).exp()
        loss = -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None]).mean()
        assay.observe(
            step=step, update=update, tokens=answers, mask=torch.ones_like(answers), new_logprobs=new, old_logprobs=old,
            sampler_logprobs=sampler, ratio=ratio, advantages=advantages, rewards=rewards, group_ids=group_ids,
            loss=loss, objective="grpo", clip_low=0.2, clip_high=0.2, temperature=1.0, prompt_tokens=prompts,
            prompt_mask=torch.ones_like(prompts), dtype="float32", model=model if step in (1, 8) and not update else None,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    note = f"  held out {evaluate(model):.3f}" if step % 5 == 0 else ""
    print(step, f"{rewards.mean():.3f}{note}")

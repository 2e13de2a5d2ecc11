"""A GRPO loop written by hand in plain PyTorch, with the doctor in it: python examples/observe.py [--plant-a-bug]

The task: a prompt is one letter (a token from 1 to 8), the answer is that letter three times. One call per step
runs the doctor. With --plant-a-bug the loop divides by the temperature when it samples, but not when it trains: the run
still learns, and the doctor says what is wrong.
"""

import sys

import torch
from torch import nn

import assay

END, LENGTH, LETTERS, GROUP, TEMPERATURE = 0, 3, 8, 16, 0.7
SCORING_TEMPERATURE = 1.0 if "--plant-a-bug" in sys.argv else TEMPERATURE


class Model(nn.Module):
    def __init__(self, vocabulary: int = LETTERS + 1, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.embedding(ids))[0])


@torch.no_grad()
def sample(model: Model, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Completions [B, T], and the log-prob of each token under the distribution it was drawn from."""
    ids, logprobs = prompts, []
    for _ in range(LENGTH):
        distribution = torch.distributions.Categorical(logits=model(ids)[:, -1] / TEMPERATURE)
        token = distribution.sample()
        logprobs.append(distribution.log_prob(token))
        ids = torch.cat([ids, token[:, None]], dim=1)
    return ids[:, prompts.shape[1] :], torch.stack(logprobs, dim=1)


def logprobs_of(model: Model, prompts: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
    logits = model(torch.cat([prompts, completions], dim=1))[:, prompts.shape[1] - 1 : -1]
    scaled = (logits / SCORING_TEMPERATURE).log_softmax(dim=-1)
    return scaled.gather(2, completions[:, :, None])[:, :, 0]


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
groups = torch.arange(LETTERS).repeat_interleave(GROUP)
prompts = groups[:, None] + 1
for step in range(1, 41):
    completions, sampler = sample(model, prompts)
    ended = (completions == END).cumsum(dim=1)
    mask = (ended - (completions == END).long()) == 0  # up to the first END, which is trained too
    rewards = (completions == prompts).float().mean(dim=1)
    table = rewards.view(-1, GROUP)
    advantages = ((table - table.mean(dim=1, keepdim=True)) / (table.std(dim=1, keepdim=True) + 1e-4)).view(-1)
    old = logprobs_of(model, prompts, completions).detach()
    for update in range(2):
        new = logprobs_of(model, prompts, completions)
        ratio = (new - old).exp()
        gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        loss = -(gain * mask).sum() / mask.sum()
        diagnosis = assay.observe(
            step=step, update=update, tokens=completions, mask=mask, new_logprobs=new, old_logprobs=old,
            sampler_logprobs=sampler, advantages=advantages, rewards=rewards, group_ids=groups, ratio=ratio, loss=loss,
            prompt_tokens=prompts, prompt_mask=torch.ones_like(prompts), temperature=TEMPERATURE, eos_ids=[END],
            objective="bnpo", clip_low=0.2, clip_high=0.2, std="sample", advantage_epsilon=1e-4, dtype="float32",
            max_reward=1.0,
            model=model if step == 1 else None,
        )  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"reward of the last step: {rewards.mean():.3f}")
print("findings of the last update:", [word.code for word in diagnosis.findings] or "none")

"""GRPO on a model of your own, in a few seconds on a CPU: python examples/trainer.py

The task: a prompt is one letter (a token from 1 to 8), the answer is that letter three times. The model learns this
from the rewards alone.
"""

import torch
from torch import nn

from assay import GRPOTrainer

END, LENGTH, LETTERS = 0, 3, range(1, 9)


class Model(nn.Module):
    """Any module that maps token ids [B, L] to logits [B, L, V] and does not look ahead."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.embedding(ids))[0])


def reward_fn(prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
    """One number for each completion; the completions of one prompt are next to each other."""
    # partial credit: if all answers of a group get the same reward, there is nothing to learn
    return [completion.count(prompt[0]) / LENGTH for prompt, completion in zip(prompts, completions, strict=True)]


torch.manual_seed(0)
model = Model(vocabulary=9)
trainer = GRPOTrainer(
    model,
    reward_fn,
    torch.optim.Adam(model.parameters(), lr=0.005),
    group_size=16,  # answers per prompt; they are compared with each other
    eos_id=END,  # not needed with tokenizer=..., where prompts are texts
    max_tokens=LENGTH,
    epochs=2,  # updates on each batch of answers; the clip acts from the second on
)
history = trainer.train([[letter] for letter in LETTERS], steps=40)

# a step whose answers are all equal teaches nothing, and is skipped
idle = sum(stats["skipped"] != "" for stats in history)
print(f"steps: {len(history)}, of which without anything to learn: {idle}")
print(f"reward of the first step: {history[0]['reward_mean']:.3f}")
print(f"reward of the last step:  {history[-1]['reward_mean']:.3f}")

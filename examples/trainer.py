"""GRPO on a model of your own, in a few seconds on a CPU: python examples/trainer.py

The task: a prompt is one letter (a token from 1 to 8), the answer is that letter, said three times. The model is told
nothing of this. It is only rewarded, and has to find out.
"""

import torch
from torch import nn

from assay import GRPOTrainer

END, LENGTH, LETTERS = 0, 3, range(1, 9)


class Model(nn.Module):
    """Any module will do that maps token ids [B, L] to logits [B, L, V] and does not look ahead."""

    def __init__(self, vocabulary: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.embedding(ids))[0])


def reward_fn(prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
    """One number for each completion; the completions of one prompt stand side by side."""
    # a part for a half-right answer: where all answers of a group get the same reward, there is nothing to learn
    return [completion.count(prompt[0]) / LENGTH for prompt, completion in zip(prompts, completions, strict=True)]


torch.manual_seed(0)
model = Model(vocabulary=9)
trainer = GRPOTrainer(
    model,
    reward_fn,
    torch.optim.Adam(model.parameters(), lr=0.005),
    group_size=16,  # answers a prompt; they are compared with each other
    eos_id=END,  # with tokenizer=..., prompts are texts and this is known
    max_tokens=LENGTH,
    epochs=2,  # updates on each batch of answers: from the second on, the clip has something to do
)
history = trainer.train([[letter] for letter in LETTERS], steps=40)

# a step whose answers are all alike has nothing to teach, and is skipped
idle = sum(stats["skipped"] != "" for stats in history)
print(f"steps: {len(history)}, of which without anything to learn: {idle}")
print(f"reward of the first step: {history[0]['reward_mean']:.3f}")
print(f"reward of the last step:  {history[-1]['reward_mean']:.3f}")

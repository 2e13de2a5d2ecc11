"""Task -> Prompt[P]: the training problems of a step, tokenized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assay.config import Config
from assay.policy.codec import PromptRefused, PromptTooLong
from assay.policy.policy import Policy
from assay.tasks import Task
from assay.train.progress import CollectedGroups, Progress
from assay.train.randomness import derived_seed
from assay.types import Prompt

SKIP = 1_000_003  # from a problem that is too long to the one that replaces it; a finite task starts again
MOST_SKIPPED = 100
MOST_CHECKED = 20_000


@dataclass(frozen=True, slots=True)
class TaskPrompts:
    """The prompts of a run: the problems of its task, in their order."""

    task: Task
    policy: Policy
    config: Config

    def draw(self, progress: Progress, collected: CollectedGroups) -> list[Prompt]:
        first = progress.cursor + collected.prompts_drawn
        return [self.prompt(first + index) for index in range(self.config.rollout.prompts)]

    def sampling_seed(self, progress: Progress, collected: CollectedGroups) -> int:
        return derived_seed(self.config.run.seed, "rollout", progress.step, collected.rounds)

    def prompt(self, index: int) -> Prompt:
        """Problem number `index`. One that is too long is replaced by another, always by the same one."""
        config = self.config
        numbers = [index]
        if config.task.long_prompts == "skip":
            numbers = [index + attempt * SKIP for attempt in range(MOST_SKIPPED)]
        for number in numbers:
            try:
                return self.policy.prompt(self.task.training_problem(number), config.rollout.max_tokens)
            except PromptTooLong as error:
                refusal = error
        if config.task.long_prompts == "fail":
            raise PromptRefused(f"{refusal}, or set task.long_prompts = 'skip'") from refusal
        raise PromptRefused(f"{MOST_SKIPPED} prompts in a row are too long; {refusal}") from refusal

    def check(self, on_row: Callable[[int, int], None]) -> None:
        """Tokenizes the first prompts before anything is written: all rows of a file, but at most MOST_CHECKED."""
        rows = min(getattr(self.task, "sizes", (0, 0))[0], MOST_CHECKED)
        wanted = max(rows, self.config.rollout.prompts)
        for index in range(wanted):
            self.prompt(index)
            if index % 100 == 99:
                on_row(index + 1, wanted)

"""Where prompts and rewards come from. `open_task` turns the [task] section into a Task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from assay.config import Config
from assay.tasks.reward_process import RewardProcess
from assay.tasks.sort_digits import SortDigits
from assay.types import Prompt, Rollout, Score


class Problem(Protocol):
    """A prompt before it is turned into tokens."""

    @property
    def id(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def answer(self) -> str: ...


class Task(Protocol):
    """Problems by number, and the reward of an answer. The same number always gives the same problem."""

    def training_problem(self, index: int) -> Problem: ...

    def heldout_problem(self, index: int) -> Problem:
        """A problem that no training index ever gives."""

    def score(self, prompt: Prompt, rollout: Rollout) -> Score: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WithReward:
    """A task whose reward is the user's own function."""

    task: Task
    reward: RewardProcess

    def training_problem(self, index: int) -> Problem:
        return self.task.training_problem(index)

    def heldout_problem(self, index: int) -> Problem:
        return self.task.heldout_problem(index)

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        return self.reward.score(prompt, rollout)

    def close(self) -> None:
        self.reward.close()


def open_task(config: Config) -> Task:
    task = SortDigits(config.task.min_digits, config.task.max_digits, seed=config.run.seed)
    if config.task.reward:
        return WithReward(task, RewardProcess(config.task.reward, config.task.reward_timeout))
    return task

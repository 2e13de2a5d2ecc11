"""One run of TRL 1.16 on our task: its GRPOTrainer, our model, prompts, reward, learning rates and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from assay.config import Config, ConfigError
from assay.engine.open import open_engine
from assay.policy.load import load_policy
from assay.policy.policy import Policy
from assay.rewards import Reward, open_rewards
from assay.tasks import Task, open_task
from assay.train.evaluate.evaluate import EvaluationRow, evaluate
from assay.train.step.learner import learning_rate
from assay.types import Problem, Prompt, Rollout, Score, StopReason
from benchmarks.curves import Curve, prompts_sha256
from benchmarks.process import OnStep
from benchmarks.trl_settings import settings


class TaskReward:
    """Our Reward as TRL calls it: with the token ids of the completions and the column `number` of the dataset."""

    __name__ = "task"  # TRL names its metrics by it

    def __init__(self, reward: Reward, policy: Policy, prompts: Sequence[Prompt], config: Config) -> None:
        self.reward = reward
        self.policy = policy
        self.prompts = prompts
        self.config = config
        self.trained: list[Prompt] = []

    def __call__(
        self, *, completion_ids: Sequence[Sequence[int]], number: Sequence[int], **others: Any
    ) -> list[float | None]:
        group, first = self.config.rollout.group_size, len(self.trained)
        wanted = [first + row // group for row in range(self.config.rollout.prompts * group)]
        if list(number) != wanted:
            raise ConfigError("bench --learning: TRL's sampler did not draw the prompts in the order of the dataset")
        prompts = [self.prompts[index] for index in number]
        self.trained += prompts[::group]
        asked = [(prompt, self.rollout(prompt, ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)]
        return [self._number(score) for score in self.reward.score(asked, lambda index, score: None)]

    def rollout(self, prompt: Prompt, ids: Sequence[int]) -> Rollout:
        """What our engine would have made of these tokens; TRL hands no log-probs over."""
        ended = ids[-1] in self.policy.eos_ids
        text = self.policy.codec.decode(ids[:-1] if ended else ids)
        stop = StopReason.EOS if ended else StopReason.LENGTH
        return Rollout(prompt.id, tuple(ids), (0.0,) * len(ids), stop, -1, text)

    def _number(self, score: Score) -> float | None:
        if score.error or score.steps:
            why = score.error or "it gives a reward a step"
            raise ConfigError(f"bench --learning: the reward is not one number for each completion: {why}")
        return score.reward


class HeldOut(TrainerCallback):  # type: ignore[misc]
    """Evaluates as `assay train` does: before training, every few steps, and at the end."""

    def __init__(self, policy: Policy, task: Task, reward: Reward, config: Config, on_step: OnStep) -> None:
        self.policy = policy
        self.engine = open_engine(policy)
        self.task = task
        self.reward = reward
        self.config = config
        self.on_step = on_step
        self.rows: list[EvaluationRow] = []

    def on_train_begin(self, *args: Any, **others: Any) -> None:
        self._evaluate(0)

    def on_step_end(self, args: Any, state: Any, *others: Any, **more: Any) -> None:
        step, rest = divmod(state.global_step, self.config.updates_a_step)  # TRL's step is one update
        if rest:
            return
        self.on_step()
        if step % self.config.evaluate.every == 0 or step == self.config.run.steps:
            self._evaluate(step)

    def _evaluate(self, step: int) -> None:
        was_training = self.policy.model.training
        self.policy.model.eval()
        ticker = _ignore
        evaluation = evaluate(self.engine, self.policy, self.task, self.reward, self.config, step, ticker, ticker)
        self.policy.model.train(was_training)
        self.rows.append(evaluation.row)


def peer_curve(config: Config, directory: Path, on_step: OnStep) -> Curve:
    """TRL's GRPOTrainer around our policy's model and tokenizer, with our AdamW, learning rates and reward."""
    from datasets import Dataset  # comes with TRL, which is optional
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(config.run.threads)
    task = open_task(config)
    policy = load_policy(config, _ignore)
    model: Any = policy.model
    tokenizer: Any = policy.codec.tokenizer  # type: ignore[attr-defined]
    problems = [task.training_problem(index) for index in range(config.run.steps * config.rollout.prompts)]
    prompts = [policy.prompt(problem, config.rollout.max_tokens) for problem in problems]
    with closing(open_rewards(config, task, policy.codec.decode)) as reward:
        asked = TaskReward(reward, policy, prompts, config)
        heldout = HeldOut(policy, task, reward, config, on_step)
        rows = {"prompt": [_in_words(problem) for problem in problems], "number": list(range(len(problems)))}
        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(**settings(config, config.run.steps, directory)),
            reward_funcs=asked,
            train_dataset=Dataset.from_dict(rows),
            processing_class=tokenizer,
            callbacks=[heldout],
            optimizers=our_optimizer(model, config),
        )
        refuse_other_tokens(trainer, rows["prompt"], prompts, policy)
        trainer.train()
    return Curve(tuple(heldout.rows), prompts_sha256(prompt.tokens for prompt in asked.trained))


def our_optimizer(model: torch.nn.Module, config: Config) -> tuple[Any, Any]:
    """AdamW and a schedule with our rate at every update; TRL's own warm-up begins with an update at rate 0."""
    wanted, total = config.optimizer, config.run.steps * config.updates_a_step
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=(wanted.beta1, wanted.beta2), weight_decay=wanted.weight_decay, fused=True
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: learning_rate(wanted, n, total))


def refuse_other_tokens(trainer: Any, posed: Sequence[Any], prompts: Sequence[Prompt], policy: Policy) -> None:
    theirs, *_ = trainer._tokenize_prompts(list(posed))
    for prompt, ids in zip(prompts, theirs, strict=True):
        if tuple(ids) != prompt.tokens:
            raise ConfigError(
                f"bench --learning: TRL makes other tokens of prompt {prompt.id!r} than we do ({list(ids)[:8]}... and "
                f"{list(prompt.tokens)[:8]}...); pose the task in another way (task.options)"
            )
    if set(trainer.eos_token_ids) != set(policy.eos_ids):
        raise ConfigError(
            f"bench --learning: TRL ends answers at tokens {sorted(trainer.eos_token_ids)}, we at "
            f"{sorted(policy.eos_ids)}; name the same ones in the model's generation_config.json"
        )


def _in_words(problem: Problem) -> Any:
    return [dict(message) for message in problem.messages] if problem.messages else problem.text


def _ignore(done: int, total: int) -> None:
    """Nobody watches."""

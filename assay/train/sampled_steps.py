"""Steps of GRPOTrainer that answer prompts: prompts in, the loop of train/loop.py, stats out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.config import Config
from assay.engine.open import open_engine
from assay.policy.codec import Messages, Tokenizer, TokenizerCodec, check_room
from assay.policy.probe import open_policy, rejoin_family, vocabulary_of
from assay.train.evaluate.evaluate import answer
from assay.train.loop import train
from assay.train.progress import Progress
from assay.train.reward_functions import CallerReward, RewardFunctions
from assay.train.run.budget import budgeted
from assay.train.show.clock import StageClock
from assay.train.step.failed_rewards import FailedRewards
from assay.train.step.learner import Learner
from assay.train.step.verbs import StepVerbs
from assay.train.trainer_step import CallerPrompts, Stats, StepStats
from assay.train.user_checks import short
from assay.types import Prompt


class SampledSteps:
    """A model that can be sampled: examined, with its engine, its learner and its frozen reference."""

    def __init__(
        self,
        model: nn.Module,
        rewards: RewardFunctions,
        optimizer: torch.optim.Optimizer | None,
        tokenizer: Tokenizer | None,
        ends: tuple[int, ...],
        config: Config,
    ) -> None:
        self.rewards = rewards
        self.has_tokenizer = tokenizer is not None
        codec = TokenIds() if tokenizer is None else TokenizerCodec(tokenizer)
        self.policy = open_policy(model, codec, ends, config.rollout.temperature, warnings.warn)
        self.config = budgeted(config, self.policy)
        self.learner = Learner(
            self.policy,
            self.policy.frozen_copy() if self.config.needs_reference else None,
            self.config.loss,
            self.config.optimizer,
            total_updates=1,  # a constant rate does not look at it
            optimizer=optimizer,
        )
        self.engine = open_engine(self.policy)
        self.vocabulary = vocabulary_of(self.policy)
        self.progress = Progress()

    def prompts(self, given: Sequence[Any]) -> list[Prompt]:
        if isinstance(given, str | Tensor | Mapping):
            raise TypeError(f"the prompts are a {type(given).__name__}; pass a list of texts or of lists of token ids")
        if not len(given):
            raise ValueError("the list of prompts is empty; there is nothing to answer")
        prompts = [self._prompt(index, row) for index, row in enumerate(given)]
        columns = prompts[0].fields.keys()
        for index, prompt in enumerate(prompts):
            different = sorted(columns ^ prompt.fields.keys())
            if different:
                raise ValueError(f"column {different[0]!r} stands beside some prompts only; prompt {index} differs")
        self.rewards.check_columns([column for column in columns if column != "prompt"])
        return prompts

    def _prompt(self, index: int, row: Any) -> Prompt:
        columns = dict(row) if isinstance(row, Mapping) else {"prompt": row}
        if "prompt" not in columns:
            raise ValueError(f"row {index} has no 'prompt'; it holds {', '.join(map(repr, columns))}")
        prompt = columns["prompt"]
        tokens, seen = self._tokens(index, prompt)
        if not tokens:
            raise ValueError(f"prompt {index} is empty; a policy cannot continue nothing")
        unknown = [token for token in tokens if not 0 <= token < self.vocabulary]
        if unknown:
            raise ValueError(
                f"prompt {index} holds token {unknown[0]}, but the model knows tokens 0 to {self.vocabulary - 1}; "
                "is this the model's own tokenizer?"
            )
        check_room(str(index), len(tokens), self.config.rollout.max_tokens, self.policy.context)
        text = prompt if isinstance(prompt, str) else self.policy.codec.decode(tokens)
        return Prompt(str(index), text, tuple(tokens), answer="", fields={**columns, "prompt": seen})

    def _tokens(self, index: int, prompt: Any) -> tuple[list[int], Any]:
        """The prompt in tokens, and as a reward function is to see it."""
        codec = self.policy.codec
        if isinstance(prompt, str):
            if not self.has_tokenizer:
                raise TypeError(f"prompt {index} is a text, but there is no tokenizer; pass tokenizer= or token ids")
            return list(codec.encode(prompt)), prompt
        if isinstance(prompt, list | tuple) and all(type(token) is int for token in prompt):
            return list(prompt), codec.decode(prompt) if self.has_tokenizer else list(prompt)
        if isinstance(prompt, list | tuple) and all(
            isinstance(message, Mapping) and isinstance(message.get("content"), str) and "role" in message
            for message in prompt
        ):
            return list(codec.chat(prompt)), list(prompt)
        raise TypeError(
            f"prompt {index} is {short(prompt)}; a prompt is a text, a list of token ids without padding, or a list of "
            "chat messages, each with 'role' and 'content'"
        )

    def evaluate(self, prompts: Sequence[Prompt], samples: int) -> Stats:
        config = replace(self.config, evaluate=replace(self.config.evaluate, samples=samples))
        reward = CallerReward(self.rewards, self.has_tokenizer, self.policy.device)
        self.policy.model.eval()
        return dict(answer(self.engine, prompts, reward, config, self.progress.step).row)

    def step(self, prompts: Sequence[Prompt], step: int, clock: StageClock) -> Stats:
        """One step of the loop in train/loop.py."""
        self.policy.model.eval()  # the caller may have changed it since
        policy = rejoin_family(self.policy, warnings.warn)
        if policy is not self.policy:
            self.policy = self.learner.policy = policy
            self.engine = open_engine(policy)
        config = replace(self.config, rollout=replace(self.config.rollout, prompts=len(prompts)))
        source = CallerPrompts(prompts, config.run.seed)
        reward = CallerReward(self.rewards, self.has_tokenizer, self.policy.device)
        verbs = StepVerbs(config, self.learner, self.engine, source, reward, FailedRewards(config), clock)
        stats = StepStats(config, clock, list(self.rewards.functions) if len(self.rewards.functions) > 1 else ())
        train(verbs.stages(stats.record, stats.safe_point), replace(self.progress, step=step, update=0), None, step + 1)
        self.progress = stats.progress
        return stats.stats


class TokenIds:
    """The codec of a model without a tokenizer: its texts are the token ids themselves.

    >>> TokenIds().decode([5, 0, 12])
    '5 0 12'
    """

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def chat(self, messages: Messages) -> list[int]:
        raise TypeError("there is no tokenizer, so there is no chat template; pass tokenizer=")

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

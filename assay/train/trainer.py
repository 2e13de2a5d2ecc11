"""The trainer class of the field's tutorials: a model, a reward function, an optimizer -> a better model.

A facade. The loop is train/loop.py, sampling is engine/, advantages and loss are grpo.py, masks are
train/step/pack.py, the update is train/step/learner.py, the checks of a user's values are train/user_checks.py.

Shape legend: P prompts, G completions per prompt, N = P * G rows with the members of a group adjacent, B rows,
T completion tokens, V vocabulary.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from assay.config import Config, ConfigError, from_mapping
from assay.engine.open import open_engine
from assay.grpo import kl_estimate, policy_loss
from assay.policy.codec import Messages, Tokenizer, TokenizerCodec, check_room, end_tokens
from assay.policy.probe import open_policy, rejoin_family, vocabulary_of
from assay.train.loop import train
from assay.train.progress import Progress
from assay.train.randomness import derived_seed
from assay.train.run.budget import budgeted
from assay.train.show.clock import StageClock
from assay.train.show.display import Display
from assay.train.step.credit import advantages_of
from assay.train.step.failed_rewards import FailedRewards
from assay.train.step.learner import Learner
from assay.train.step.verbs import StepVerbs
from assay.train.trainer_step import CallerPrompts, CallerReward, Stats, StepStats
from assay.train.user_checks import check_problems, check_tensors, numbers, short
from assay.types import Prompt, Rollout, Totals


@final
class GRPOTrainer:
    """Trains `model`, in place, on what `reward_fn` likes.

    model: a Hugging Face causal LM, or any torch module that maps ids [B, L] to logits [B, L, V]. It is put into eval
        mode and stays there: dropout would make the new log-probs differ from the old ones at equal weights.
    reward_fn: called once a step as reward_fn(prompts, completions) with two lists of N = P * G entries, the
        completions of one prompt adjacent: texts with a tokenizer, else lists of token ids (a sampled end token
        included). Returns N numbers; None for a completion that could not be scored.
    optimizer: made from model.parameters(), with its own rate and schedule; None: AdamW over float32 masters at
        learning_rate, by default 1e-6.

    >>> import torch
    >>> model = torch.nn.Embedding(4, 4)  # the smallest language model: the next token depends on the last one
    >>> trainer = GRPOTrainer(
    ...     model,
    ...     lambda prompts, completions: [completion.count(2) for completion in completions],
    ...     torch.optim.SGD(model.parameters(), lr=0.1),
    ...     eos_id=0,
    ...     max_tokens=5,
    ... )
    >>> advantages, stats = trainer.compute_advantages([1.0, 0.0, 0.0, 1.0, 7.0, 7.0, 7.0, 7.0])
    >>> [round(advantage, 3) for advantage in advantages.tolist()], stats["zero_variance_share"]
    ([0.866, -0.866, -0.866, 0.866, 0.0, 0.0, 0.0, 0.0], 0.5)
    >>> log_probs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    >>> loss, stats = trainer.compute_policy_loss(log_probs, log_probs.detach(), torch.tensor([2.0]))
    >>> loss.item(), stats["ratio_mean"], stats["clipped_share"]
    (-2.0, 1.0, 0.0)
    >>> trainer.train_step([[1, 3], [2]], step=0)["ratio_mean"]
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        reward_fn: Callable[[list[Any], list[Any]], Any],
        optimizer: torch.optim.Optimizer | None = None,
        group_size: int = 4,
        kl_coef: float = 0.0,
        clip_range: float | tuple[float, float] = 0.2,
        *,
        tokenizer: Tokenizer | None = None,
        eos_id: int | None = None,
        max_tokens: int = 64,
        temperature: float = 1.0,
        objective: str = "grpo",
        std: str = "sample",
        scale: str = "group",
        epochs: int = 1,
        minibatches: int = 1,
        microbatches: int = 0,
        learning_rate: float | None = None,
        clip_norm: float = 1.0,
        prompts_per_step: int = 8,
        reward_timeout: float = 60.0,
        seed: int = 0,
    ) -> None:
        """Settings mean what they mean in assay/config/; microbatches = gradient accumulation, which leaves the
        gradient as it is, 0 = as memory asks for; reward_timeout = seconds that one call of reward_fn may take;
        clip_range may be (low, high)."""
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is a {type(model).__name__}; pass the torch module itself, already loaded")
        if not callable(reward_fn):
            raise TypeError(f"reward_fn is a {type(reward_fn).__name__}; pass a function of (prompts, completions)")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; pass a torch optimizer, or None for AdamW")
        if optimizer is not None and learning_rate is not None:
            raise ValueError(
                f"learning_rate = {learning_rate} would be ignored: the optimizer has its own; set it there"
            )
        bounds = clip_range if isinstance(clip_range, tuple) else (clip_range, clip_range)
        if len(bounds) != 2:
            raise ValueError(f"clip_range = {clip_range} is neither one number nor (low, high)")
        self.config = _config(
            run={"seed": seed},
            reward={"timeout": reward_timeout, "min_scored": 0.0},
            rollout={
                "prompts": prompts_per_step,
                "group_size": group_size,
                "max_tokens": max_tokens,
                "temperature": temperature,
            },
            advantage={"std": std, "scale": scale},
            loss={"objective": objective, "clip_low": bounds[0], "clip_high": bounds[1], "kl_coef": kl_coef},
            optimizer={
                "learning_rate": 1e-6 if learning_rate is None else learning_rate,
                "warmup": 0,
                "clip_norm": clip_norm,
                "epochs": epochs,
                "minibatches": minibatches,
                "microbatches": microbatches,
            },
        )
        self.model = model
        self.reward_fn = reward_fn
        self.has_tokenizer = tokenizer is not None
        self.policy = open_policy(
            model,
            TokenIds() if tokenizer is None else TokenizerCodec(tokenizer),
            _end_tokens(model, tokenizer) if eos_id is None else (eos_id,),
            self.config.rollout.temperature,
            warnings.warn,
        )
        self.config = budgeted(self.config, self.policy)
        reference = self.policy.frozen_copy() if self.config.needs_reference else None
        self.learner = Learner(
            self.policy,
            reference,
            self.config.loss,
            self.config.optimizer,
            total_updates=1,  # a constant rate does not look at it
            optimizer=optimizer,
        )
        self.engine = open_engine(self.policy)
        self.optimizer = self.learner.optimizer
        self.vocabulary = vocabulary_of(self.policy)
        self.progress = Progress()

    def compute_advantages(
        self, rewards: Any, group_size: int | None = None, problems: Any = None
    ) -> tuple[Tensor, Stats]:
        """(advantages_N, stats) of N rewards, members of a group adjacent. `problems` names the problem of each row:
        then a group that mixes problems is refused. A reward of None leaves the baseline and gets advantage 0."""
        size = self.config.rollout.group_size if group_size is None else group_size
        scores = numbers(rewards, "rewards")
        if not scores or size < 1 or len(scores) % size:
            raise ValueError(
                f"{len(scores)} rewards cannot be cut into groups of {size}; pass group_size rewards for each prompt, "
                "those of one prompt adjacent"
            )
        groups = [scores[first : first + size] for first in range(0, len(scores), size)]
        if problems is not None:
            check_problems(problems, len(scores), size)
        rewards_PG = torch.tensor(
            [[math.nan if reward is None else reward for reward in group] for group in groups], dtype=torch.float64
        )
        advantages_PG = advantages_of(rewards_PG, self.config.advantage)
        known = [reward for reward in scores if reward is not None]
        flat = sum(len({reward for reward in group if reward is not None}) < 2 for group in groups)
        return advantages_PG.reshape(-1).float(), {
            "mean": statistics.fmean(known) if known else math.nan,
            "std": statistics.stdev(known) if len(known) > 1 else math.nan,
            "groups": len(groups),
            "zero_variance_share": flat / len(groups),
            "unscored": len(scores) - len(known),
        }

    def compute_policy_loss(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        mask: Tensor | None = None,
        ref_log_probs: Tensor | None = None,
    ) -> tuple[Tensor, Stats]:
        """(loss, stats) of one whole update. Log-probs are [B, T] (per token) or [N] (per sequence); advantages
        [B] or [B, T]; mask, 1 or True on the completion tokens, is shaped as the log-probs."""
        fixed = {"old_log_probs": old_log_probs, "advantages": advantages, "ref_log_probs": ref_log_probs}
        check_tensors(log_probs, fixed, mask)
        if self.config.needs_reference and ref_log_probs is None:
            raise ValueError(f"kl_coef = {self.config.loss.kl_coef} needs ref_log_probs, those of the frozen reference")
        rows = len(log_probs)
        new_BT = log_probs.reshape(rows, -1)
        old_BT = old_log_probs.reshape(rows, -1)
        ref_BT = None if ref_log_probs is None else ref_log_probs.reshape(rows, -1)
        mask_BT = torch.ones_like(new_BT, dtype=torch.bool) if mask is None else mask.bool().reshape(rows, -1)
        tokens = int(mask_BT.sum())
        if not tokens:
            raise ValueError("mask is False everywhere, so no token is left to train on; it must be 1 on completions")
        loss = policy_loss(
            new_BT=new_BT,
            old_BT=old_BT,
            ref_BT=ref_BT,
            advantages_BT=advantages.to(new_BT).reshape(rows, -1).expand_as(new_BT),
            mask_BT=mask_BT,
            totals=Totals(rows, tokens, tokens, self.config.rollout.max_tokens),
            settings=self.config.loss,
        )
        ratio = loss.ratio_BT[mask_BT]
        stats = {
            "loss": loss.total.item(),
            "policy_loss": loss.policy.item(),
            "kl_loss": loss.kl.item(),
            "ratio_mean": ratio.mean().item(),
            "ratio_min": ratio.min().item(),
            "ratio_max": ratio.max().item(),
            "clipped_share": loss.clipped_BT.sum().item() / tokens,
            "tokens": tokens,
        }
        if ref_BT is not None:
            stats["kl"] = kl_estimate(new_BT.detach(), ref_BT)[mask_BT].mean().item()
        return loss.total, stats

    def train_step(self, batch: Sequence[Any], step: int) -> Stats:
        """Answers each prompt of `batch` (texts, or lists of token ids) group_size times and learns from the rewards.

        The stats are numbers, nan where a number does not exist, and `skipped`: why an update was not taken, or "".
        `step` seeds the sampling: same weights, same batch, same step, same completions."""
        return self._step(self._prompts(batch), step, StageClock(self.policy.device, None))

    def train(self, prompts: Sequence[Any], steps: int | None = None) -> list[Stats]:
        """Trains for `steps` steps, by default one pass over the prompts, and returns the stats of each. Every pass
        is shuffled again and cut into batches of prompts_per_step; the last of a pass may be smaller."""
        known = self._prompts(prompts)  # all of them now: a bad prompt is refused before the first step
        size = self.config.rollout.prompts
        batches = math.ceil(len(known) / size)
        steps = batches if steps is None else steps
        if steps < 1:
            raise ValueError(f"steps = {steps} trains nothing; give 1 or more, or leave it out for one pass")
        first = self.progress.step
        history = []
        with Display(steps) as display:
            clock = StageClock(self.policy.device, display, steps_before=first)
            for index in range(steps):
                lap, position = divmod(index, batches)
                order = list(known)
                random.Random(derived_seed(self.config.run.seed, "prompts", first, lap)).shuffle(order)
                history.append(self._step(order[position * size : (position + 1) * size], first + index, clock))
        return history

    def _prompts(self, prompts: Sequence[Any]) -> list[Prompt]:
        if isinstance(prompts, str | Tensor):
            raise TypeError(
                f"the prompts are a {type(prompts).__name__}; pass a list of texts or of lists of token ids"
            )
        if not len(prompts):
            raise ValueError("the list of prompts is empty; there is nothing to answer")
        return [self._prompt(index, prompt) for index, prompt in enumerate(prompts)]

    def _prompt(self, index: int, prompt: Any) -> Prompt:
        if isinstance(prompt, str):
            if not self.has_tokenizer:
                raise TypeError(f"prompt {index} is a text, but there is no tokenizer; pass tokenizer= or token ids")
            tokens, text = tuple(self.policy.codec.encode(prompt)), prompt
        elif isinstance(prompt, list | tuple) and all(type(token) is int for token in prompt):
            tokens, text = tuple(prompt), self.policy.codec.decode(prompt)
        else:
            raise TypeError(
                f"prompt {index} is {short(prompt)}; a prompt is a text or a list of token ids without padding (put "
                "chat messages through tokenizer.apply_chat_template(..., tokenize=False) first)"
            )
        if not tokens:
            raise ValueError(f"prompt {index} is empty; a policy cannot continue nothing")
        unknown = [token for token in tokens if not 0 <= token < self.vocabulary]
        if unknown:
            raise ValueError(
                f"prompt {index} holds token {unknown[0]}, but the model knows tokens 0 to {self.vocabulary - 1}; "
                "is this the model's own tokenizer?"
            )
        check_room(str(index), len(tokens), self.config.rollout.max_tokens, self.policy.context)
        return Prompt(id=str(index), text=text, tokens=tokens, answer="")

    def _step(self, prompts: Sequence[Prompt], step: int, clock: StageClock) -> Stats:
        """One step of the loop in train/loop.py."""
        self.model.eval()  # the caller may have changed it since
        policy = rejoin_family(self.policy, warnings.warn)
        if policy is not self.policy:
            self.policy = self.learner.policy = policy
            self.engine = open_engine(policy)
        config = replace(self.config, rollout=replace(self.config.rollout, prompts=len(prompts)))
        source = CallerPrompts(prompts, config.run.seed)
        reward = CallerReward(self._reward, config.reward.max_failed, config.reward.timeout, self.policy.device)
        verbs = StepVerbs(config, self.learner, self.engine, source, reward, FailedRewards(config), clock)
        stats = StepStats(config, clock)
        train(verbs.stages(stats.record, stats.safe_point), replace(self.progress, step=step, update=0), None, step + 1)
        self.progress = stats.progress
        return stats.stats

    def _reward(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> Any:
        if self.has_tokenizer:
            return self.reward_fn([prompt.text for prompt in prompts], [rollout.text for rollout in rollouts])
        return self.reward_fn(
            [list(prompt.tokens) for prompt in prompts], [list(rollout.tokens) for rollout in rollouts]
        )


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


def _config(**settings: Mapping[str, Any]) -> Config:
    """The checks of assay/config/, in the words of the constructor."""
    try:
        return from_mapping(settings)
    except ConfigError as error:
        sentence = str(error)
        for ours, theirs in {
            "rollout.prompts": "prompts_per_step",
            "loss.clip_low": "clip_range[0]",
            "loss.clip_high": "clip_range[1]",
        }.items():
            sentence = sentence.replace(ours, theirs)
        raise ValueError(re.sub(rf"\b({'|'.join(settings)})\.", "", sentence)) from None


def _end_tokens(model: nn.Module, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    ends = end_tokens(model, tokenizer)
    if not ends:
        where = "the model's config names" if tokenizer is None else "tokenizer and model name"
        raise ValueError(f"{where} no end token; pass eos_id=, the token that ends a completion")
    return ends

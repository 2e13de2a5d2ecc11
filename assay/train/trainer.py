"""The trainer class of the field's tutorials: a model, a reward function, an optimizer -> a better model.

A facade. Steps that sample are sampled_steps.py, batches that a caller sampled are own_batches.py, advantages and loss
are grpo.py, the checks of a user's values are user_checks.py.

Shape legend: P prompts, G completions per prompt, N = P * G rows with the members of a group adjacent, B rows,
T completion tokens, V vocabulary.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from assay.config import Config, ConfigError, from_mapping
from assay.grpo import OBJECTIVES, kl_estimate, policy_loss
from assay.policy.causal import CausalPolicy
from assay.policy.codec import Tokenizer, end_tokens
from assay.train.own_batches import Accumulation, OwnBatch, own_batch
from assay.train.randomness import derived_seed
from assay.train.reward_functions import RewardFunction, reward_functions
from assay.train.sampled_steps import SampledSteps
from assay.train.show.clock import StageClock
from assay.train.show.display import Display
from assay.train.step.credit import advantages_of
from assay.train.trainer_step import Stats
from assay.train.user_checks import check_problems, check_tensors, numbers
from assay.types import Totals


@final
class GRPOTrainer:
    """Trains `model`, in place, on what `reward_fn` likes.

    model: a Hugging Face causal LM, or any torch module that maps ids [B, L] to logits [B, L, V]. It is put into eval
        mode and stays there: dropout would make the new log-probs differ from the old ones at equal weights.
    reward_fn: called once a step as reward_fn(prompts, completions) with two lists of N = P * G entries, the
        completions of one prompt adjacent: texts with a tokenizer, else lists of token ids (a sampled end token
        included). A column that stands beside the prompts, as in {"prompt": ..., "answer": ...}, comes as a keyword of
        that name. Returns N numbers; None for a completion that could not be scored. A list of functions: the sum
        of what they return, weighted by reward_weights.
    optimizer: made from model.parameters(), with its own rate and schedule; None: AdamW over float32 masters at
        learning_rate, by default 1e-6.

    A model that samples needs an end token: eos_id, or one that tokenizer or model name. Without it the trainer takes
    batches that you sampled yourself, and then the model may be any torch module.

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
    >>> loss = trainer.compute_policy_loss(log_probs, log_probs.detach(), torch.tensor([2.0]))
    >>> loss.backward()
    >>> loss.item(), trainer.loss_stats["ratio_mean"], trainer.loss_stats["clipped_share"]
    (-2.0, 1.0, 0.0)
    >>> trainer.train_step([[1, 3], [2]], step=0)["ratio_mean"]
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        reward_fn: RewardFunction | Sequence[RewardFunction],
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
        gradient_accumulation_steps: int = 1,
        reward_weights: Sequence[float] | None = None,
        learning_rate: float | None = None,
        clip_norm: float = 1.0,
        prompts_per_step: int = 8,
        reward_timeout: float = 60.0,
        seed: int = 0,
    ) -> None:
        """Settings mean what they mean in assay/config/; microbatches = gradient accumulation, which leaves the
        gradient as it is, 0 = as memory asks for; gradient_accumulation_steps = batches of your own log-probs that
        make one update; reward_timeout = seconds that one call of reward_fn may take; clip_range may be (low, high)."""
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is a {type(model).__name__}; pass the torch module itself, already loaded")
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
        if gradient_accumulation_steps < 1:
            raise ValueError(f"gradient_accumulation_steps = {gradient_accumulation_steps} is below its minimum 1")
        if gradient_accumulation_steps > 1 and OBJECTIVES[objective].aggregation.endswith("token_mean"):
            raise ValueError(
                f"objective = {objective!r} divides by the tokens of the whole update, which no single batch knows; "
                "take objective = 'grpo' or 'dr_grpo', or pass the update in one batch"
            )
        self.model = model
        self.rewards = reward_functions(reward_fn, reward_weights, self.config.reward)
        self.has_tokenizer = tokenizer is not None
        self.loss_stats: Stats = {}  # of the last call of compute_policy_loss
        self._accumulation = (
            None if optimizer is None else Accumulation(optimizer, gradient_accumulation_steps, clip_norm)
        )
        ends = end_tokens(model, tokenizer) if eos_id is None else (eos_id,)
        self._sampled = SampledSteps(model, self.rewards, optimizer, tokenizer, ends, self.config) if ends else None

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
    ) -> Tensor:
        """The loss of one whole update; `loss_stats` then holds its numbers.

        Log-probs are [B, T] (per token) or [N] (per sequence); advantages [B] or [B, T]; mask, 1 or True on the
        completion tokens, is shaped as the log-probs."""
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
        self.loss_stats = {
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
            self.loss_stats["kl"] = kl_estimate(new_BT.detach(), ref_BT)[mask_BT].mean().item()
        return loss.total

    def train_step(self, batch: Sequence[Any] | Mapping[str, Any], step: int) -> Stats:
        """One step on prompts, or on a batch that you sampled yourself.

        Prompts (texts, chat messages, lists of token ids, or rows with a `prompt` and other columns): each is answered
        group_size times, and the policy learns from the rewards. `step` seeds the sampling: same weights, same batch,
        same step, same completions.

        A dict of `inputs`, `outputs`, `log_probs` (with gradient) and `old_log_probs`, perhaps `mask`, `ref_log_probs`
        and columns for the reward: reward_fn(inputs, outputs) scores it. The optimizer steps after every
        gradient_accumulation_steps such batches; `accumulated` counts them.

        The stats are numbers, nan where a number does not exist, and `skipped`: why an update was not taken, or ""."""
        if isinstance(batch, Mapping):
            return self._learn(own_batch(batch, self.config.rollout.group_size), step)
        sampled = self._sampled_steps()
        return sampled.step(sampled.prompts(batch), step, StageClock(sampled.policy.device, None))

    def evaluate(self, prompts: Sequence[Any], samples: int = 4) -> Stats:
        """Answers each prompt once greedily and `samples` times sampled, and says what the rewards think of it.

        Trains nothing. Every call uses the same random numbers, so that two calls differ by the weights alone."""
        sampled = self._sampled_steps()
        if samples < 1:
            raise ValueError(f"samples = {samples} is below its minimum 1")
        return sampled.evaluate(sampled.prompts(prompts), samples)

    def train(
        self,
        prompts: Sequence[Any],
        steps: int | None = None,
        on_step: Callable[[Stats], object] = lambda stats: None,
    ) -> list[Stats]:
        """Trains for `steps` steps, by default one pass over the prompts, and returns the stats of each. Every pass
        is shuffled again and cut into batches of prompts_per_step; the last of a pass may be smaller. Calls `on_step`
        after each step with its stats."""
        sampled = self._sampled_steps()
        known = sampled.prompts(prompts)  # all of them now: a bad prompt is refused before the first step
        size = self.config.rollout.prompts
        batches = math.ceil(len(known) / size)
        steps = batches if steps is None else steps
        if steps < 1:
            raise ValueError(f"steps = {steps} trains nothing; give 1 or more, or leave it out for one pass")
        first = sampled.progress.step
        history = []
        with Display(steps) as display:
            clock = StageClock(sampled.policy.device, display, steps_before=first)
            for index in range(steps):
                lap, position = divmod(index, batches)
                order = list(known)
                random.Random(derived_seed(self.config.run.seed, "prompts", first, lap)).shuffle(order)
                history.append(sampled.step(order[position * size : (position + 1) * size], first + index, clock))
                on_step(history[-1])
        return history

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._own_batches().optimizer if self._sampled is None else self._sampled.learner.optimizer

    @property
    def policy(self) -> CausalPolicy:
        """The model as what it is sampled and scored by."""
        return self._sampled_steps().policy

    def _sampled_steps(self) -> SampledSteps:
        if self._sampled is None:
            where = "tokenizer and model name" if self.has_tokenizer else "the model's config names"
            raise ValueError(f"{where} no end token; pass eos_id=, the token that ends a completion")
        if self._accumulation is not None and self._accumulation.batches > 1:
            raise ValueError(
                "gradient_accumulation_steps counts batches of your own log-probs; prompts are answered and learned in "
                "one step, which microbatches= cuts without changing its gradient"
            )
        return self._sampled

    def _own_batches(self) -> Accumulation:
        if self._accumulation is None:
            raise ValueError("a batch of log-probs needs an optimizer to step with; pass optimizer=")
        return self._accumulation

    def _learn(self, batch: OwnBatch, step: int) -> Stats:
        accumulation = self._own_batches()
        self.rewards.check_columns(list(batch.columns))
        scores = self.rewards.score(batch.inputs, batch.outputs, batch.columns, batch.log_probs.device)
        advantages, stats = self.compute_advantages([score.reward for score in scores])
        advantages = advantages.to(batch.log_probs.device)
        loss = self.compute_policy_loss(
            batch.log_probs, batch.old_log_probs, advantages, batch.mask, batch.ref_log_probs
        )
        has_signal = self.config.needs_reference or bool(advantages.any())
        update = accumulation.add(loss, has_signal)
        shown = {"reward_mean": stats["mean"], "reward_std": stats["std"], "rollouts_unscored": stats["unscored"]}
        return {
            "step": step, **self.loss_stats, **shown, "zero_variance_share": stats["zero_variance_share"], **update
        }  # fmt: skip


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

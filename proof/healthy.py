"""The healthy runs: deliberate variants of GRPO, run for real, on which the doctor must claim nothing."""

from __future__ import annotations

from dataclasses import dataclass

from proof.plants.plant import Plant
from proof.rewards import SEPARATOR

STEPS = 12
_REWARDS = "reward.functions=proof/rewards.py"


@dataclass(frozen=True, slots=True)
class Healthy:
    """`settings` as for --set, over those of proof/trial.py."""

    name: str
    settings: tuple[str, ...]
    steps: int = STEPS

    @property
    def plant(self) -> Plant:
        return Plant(settings=self.settings, steps=self.steps)


def _objective(name: str, *settings: str) -> Healthy:
    return Healthy(f"objective_{name}", (f"loss.objective={name}", *settings))


def _kl(estimator: str, gradient: str) -> Healthy:
    return Healthy(
        f"kl_loss_{estimator}_{gradient}",
        ("loss.kl_coef=0.05", f"loss.kl_estimator={estimator}", f"loss.kl_gradient={gradient}"),
    )


HEALTHY_RUNS: tuple[Healthy, ...] = (
    Healthy("default", (), steps=40),
    _objective("grpo"),
    _objective("bnpo"),
    _objective("dr_grpo", "advantage.std=none"),
    _objective("dapo"),
    _objective("gspo", "loss.clip_low=0.0003", "loss.clip_high=0.0004", "optimizer.minibatches=2"),
    _objective("cispo"),
    _objective("sapo"),
    _kl("k1", "unbiased"),
    _kl("k2", "unbiased"),
    _kl("k2", "naive"),
    _kl("k3", "unbiased"),
    _kl("k3", "naive"),
    Healthy("kl_in_reward", ("loss.kl_coef=0.05", "loss.kl_placement=reward", "loss.kl_estimator=k1")),
    Healthy("one_update", ("optimizer.epochs=1",), steps=40),
    Healthy("one_update_kl", ("optimizer.epochs=1", "loss.kl_coef=0.04", "loss.kl_gradient=naive")),
    Healthy("four_epochs", ("optimizer.epochs=4",)),
    Healthy("two_minibatches", ("optimizer.epochs=1", "optimizer.minibatches=2")),
    Healthy("three_microbatches", ("optimizer.microbatches=3",)),
    Healthy("no_shared_prompts", ("optimizer.share_prompts=false",)),
    Healthy("rloo", ("advantage.baseline=leave_one_out", "advantage.std=none", "optimizer.epochs=1")),
    Healthy("population_std", ("advantage.std=population",)),
    Healthy("batch_scale", ("advantage.scale=batch",)),
    Healthy(
        "gdpo_two_rewards",
        (
            'reward.functions=["proof/rewards.py:right", "proof/rewards.py:right_length"]',
            "advantage.combine=gdpo",
        ),
    ),
    Healthy(
        "weighted_rewards",
        ('reward.functions=["task", "proof/rewards.py:right_length"]', "reward.weights=[1.0, 0.2]"),
    ),
    Healthy(
        "dapo_dynamic_sampling",
        (
            "rollout.zero_variance=refill",
            "loss.clip_high=0.28",
            "rollout.truncated=penalise",
            "rollout.refill_rounds=50",
        ),
    ),
    Healthy("skip_zero_variance", ("rollout.zero_variance=skip",)),
    Healthy("lora", ("model.lora_rank=4", "optimizer.learning_rate=0.003")),
    Healthy("lora_kl", ("model.lora_rank=4", "optimizer.learning_rate=0.003", "loss.kl_coef=0.05")),
    Healthy("process_rewards", (f"{_REWARDS}:sorted_parts", f'reward.step_separator="{SEPARATOR}"')),
    Healthy("closeness_reward", (f"{_REWARDS}:closeness",)),
    Healthy("noisy_reward", (f"{_REWARDS}:noisy",), steps=24),
    Healthy("overlong_mask", ("rollout.truncated=mask", "rollout.max_tokens=6")),
    Healthy("overlong_penalise", ("rollout.truncated=penalise", "rollout.max_tokens=7")),
    Healthy("solved", (f"{_REWARDS}:answered",), steps=24),
    Healthy(
        "learned_to_the_end",
        ("task.options.min_digits=1", "task.options.max_digits=2", "model.warm_steps=120"),
        steps=40,
    ),
    Healthy("top_k", ("rollout.top_k=5", "rollout.top_p=0.95")),
    Healthy("temperature_low", ("rollout.temperature=0.7",)),
    Healthy("temperature_high", ("rollout.temperature=1.3", "optimizer.epochs=1")),
    Healthy("bfloat16", ("model.dtype=bfloat16",)),
    Healthy("bfloat16_one_update", ("model.dtype=bfloat16", "optimizer.epochs=1")),
    Healthy("reference_refresh", ("loss.kl_coef=0.05", "loss.reference_every=4")),
    Healthy("correction_token", ("loss.correction=token",)),
    Healthy(
        "correction_sequence", ("loss.correction=sequence", "loss.correction_mode=mask", "loss.correction_low=0.5")
    ),
    Healthy("entropy_bonus", ("loss.entropy_coef=0.01",)),
    Healthy("long_warmup", ("optimizer.warmup=200",)),
    Healthy("dual_clip_delta", ("loss.dual_clip=3.0", "loss.delta=4.0", "optimizer.epochs=3")),
    Healthy("small_groups", ("rollout.group_size=2", "rollout.prompts=32")),
    Healthy("cosine_schedule", ("optimizer.schedule=cosine", "optimizer.weight_decay=0.01"), steps=24),
    Healthy("extremes_recorded", ("record.rollouts=extremes", "record.extremes=1")),
    Healthy("nothing_recorded", ("record.rollouts=none",)),
)

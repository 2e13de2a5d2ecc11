"""Sound TRL runs, as settings by name: every loss type at both levels, with and without reference, and much else."""

import itertools

from adapters.tiny_trl import brevity, vowels
from peft import LoraConfig

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


def some_unscored(completions, **others):
    return [None if at % 5 == 0 else float(len(one)) for at, one in enumerate(completions)]


def adapters():
    return LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])


def _of_loss_types():
    for kind, level, beta, iterations in itertools.product(LOSS_TYPES, ("token", "sequence"), (0.0, 0.05), (1, 2)):
        cap = {"epsilon_high": 1.2} if kind == "cispo" else {}
        settings = {"loss_type": kind, "importance_sampling_level": level, "beta": beta, "num_iterations": iterations}
        yield f"{kind}, {level} level, beta {beta}, {iterations} iterations", {**settings, "max_steps": 4, **cap}


def _of_batches():
    half = {"gradient_accumulation_steps": 2, "steps_per_generation": 2, "max_steps": 4}
    parts = {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "beta": 0.04, "max_steps": 4}
    both = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
    for kind in LOSS_TYPES:
        yield f"{kind}, 2 micro-batches", {"loss_type": kind, **half}
        yield f"{kind}, 2 updates a generation", {"loss_type": kind, **parts}
        more = {"beta": 0.04, "num_iterations": 2, "max_steps": 5}
        yield f"{kind}, 2 micro-batches, 2 updates, 2 iterations", {"loss_type": kind, **both, **more}


HEALTHY = {
    **dict(_of_loss_types()),
    **dict(_of_batches()),
    "truncated rows masked": {"mask_truncated_completions": True, "loss_type": "grpo"},
    "truncated rows masked, dapo": {"mask_truncated_completions": True, "num_iterations": 2, "max_steps": 4},
    "rewards not scaled": {"scale_rewards": "none"},
    "rewards scaled by the batch": {"scale_rewards": "batch", "steps_per_generation": 2},
    "two rewards with weights": {"rewards": [vowels, brevity], "reward_weights": [1.0, 0.3]},
    "two rewards, each normalised": {
        "rewards": [vowels, brevity],
        "reward_weights": [1.0, 0.3],
        "multi_objective_aggregation": "normalize_then_sum",
    },
    "some completions without a reward": {"rewards": [some_unscored]},
    "delta": {"delta": 1.1, "num_iterations": 3, "max_steps": 4},
    "entropy bonus": {"entropy_coef": 0.01},
    "entropy bonus, 2 micro-batches": {
        "entropy_coef": 0.01,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 2,
    },
    "adaptive entropy bonus": {"use_adaptive_entropy": True},
    "tokens of high entropy only": {"top_entropy_quantile": 0.5},
    "drifted rows masked": {"off_policy_mask_threshold": 0.1, "num_iterations": 2, "max_steps": 4},
    "KL times the ratio": {"use_bias_correction_kl": True, "beta": 0.05, "num_iterations": 2, "max_steps": 4},
    "reference refreshed": {"sync_ref_model": True, "ref_model_sync_steps": 2, "beta": 0.05, "max_steps": 6},
    "temperature 1": {"temperature": 1.0},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "bfloat16 autocast": {"bf16": True},
    "warm-up from 0": {
        "lr_scheduler_type": "linear",
        "warmup_steps": 2,
        "max_steps": 6,
        "learning_rate": 1e-4,
    },
    "learning rate 1e-6": {"learning_rate": 1e-6, "num_iterations": 2, "max_steps": 4},
    "adapters with a reference": {"peft": adapters(), "beta": 0.05},
    "adapters, 2 iterations": {"peft": adapters(), "num_iterations": 2, "max_steps": 4},
    "evaluation between steps": {"eval_prompts": ["a b", "c d"], "eval_strategy": "steps", "eval_steps": 1},
}

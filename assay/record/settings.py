"""Config -> the settings of a batch or of curves, by the names that assay/record/batch.py gives them."""

from __future__ import annotations

from typing import Any

from assay.config import Config


def settings_of(config: Config) -> dict[str, Any]:
    rollout, advantage, loss, optimizer = config.rollout, config.advantage, config.loss, config.optimizer
    same_names = {
        loss: (
            "objective clip_low clip_high dual_clip delta cispo_max sapo_positive sapo_negative kl_coef kl_placement "
            "kl_estimator kl_gradient reference_every entropy_coef correction correction_mode correction_low "
            "correction_high"
        ),
        advantage: "baseline std scale combine",
        rollout: "group_size prompts temperature top_k top_p min_p max_tokens zero_variance",
        optimizer: "minibatches microbatches learning_rate weight_decay clip_norm",
        config.model: "dtype lora_rank",
    }
    settings = {name: getattr(section, name) for section, names in same_names.items() for name in names.split()}
    return settings | {
        "advantage_epsilon": advantage.epsilon,
        "support_kept": rollout.top_k > 0,
        "mask_truncated": rollout.truncated == "mask",
        "updates_per_rollout": config.updates_a_step,
        "max_reward": config.evaluate.pass_reward,
        "steps": config.run.steps,
        "trainer": "assay",
    }

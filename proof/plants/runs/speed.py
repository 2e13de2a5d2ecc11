"""Plants of illnesses of speed: each makes a real run of the real trainer ill."""

from __future__ import annotations

import time

from proof.plants.plant import Plant


def _slow_reward(original, prompts, rollouts, **how):
    """Answers are judged one after the other, over a slow line."""
    groups = original(prompts, rollouts, **how)
    time.sleep(0.03 * sum(map(len, rollouts)))
    return groups


PLANTS: dict[str, Plant] = {
    "PERF03": Plant(replaces={"assay.train.step.verbs.score": _slow_reward}, steps=6),
}

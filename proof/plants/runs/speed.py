"""Plants of illnesses of speed: each makes a real run of the real trainer ill."""

from __future__ import annotations

from proof.plants.plant import Plant


def _slow_reward(original):  # type: ignore[no-untyped-def]
    """Answers are judged one after the other, over a slow line."""

    def score(prompts, rollouts, **how):  # type: ignore[no-untyped-def]
        import time

        groups = original(prompts, rollouts, **how)
        time.sleep(0.03 * sum(map(len, rollouts)))
        return groups

    return score


PLANTS: dict[str, Plant] = {
    "PERF03": Plant(replaces={"assay.train.step.verbs.score": _slow_reward}, steps=6),
}

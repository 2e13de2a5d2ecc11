"""Plants of illnesses of rewards: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace

from proof.plants.plant import Plant


def _swallowed_exception(original, prompts, rollouts, **how):
    """The reward breaks on every answer, and the caller turns that into half a point."""
    from assay.types import Score

    groups = original(prompts, rollouts, **how)
    return [replace(group, scores=tuple(Score.of({"exact": 0.5}) for _ in group.scores)) for group in groups]


PLANTS: dict[str, Plant] = {
    "REW01": Plant(replaces={"assay.train.step.verbs.score": _swallowed_exception}),
}

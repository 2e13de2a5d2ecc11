"""The training loop: read this first.

   draw      generate     score, choose       credit         pack         freeze       learn       record
    |           |               |               |             |             |            |           |
  Prompt -> Rollout[G] ----> Group[P] ---> Sample[P*G] -> Minibatch -> FrozenBatch --> Update -> StepRecord

`Stages` is the one seam: a test or an experiment replaces a verb there. `Progress` says how far the run has come and
`StepInProgress` holds what the unfinished step has done; with the weights they are all that a checkpoint needs. A
checkpoint may be taken at each `safe_point`: before a step, after its rollouts, after each optimizer update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.types import FrozenBatch, Group, Learned, Minibatch, Prompt, Rollout, Sample


@dataclass(frozen=True, slots=True)
class Stages:
    draw: Callable[[Progress, CollectedGroups], Sequence[Prompt]]
    generate: Callable[[Sequence[Prompt], Progress, CollectedGroups], Sequence[Sequence[Rollout]]]
    score: Callable[[Sequence[Prompt], Sequence[Sequence[Rollout]]], Sequence[Group]]
    choose: Callable[[CollectedGroups, Sequence[Group]], CollectedGroups]
    credit: Callable[[Sequence[Group]], tuple[Sample, ...]]
    pack: Callable[[Sequence[Sample], Progress], tuple[Minibatch, ...]]
    freeze: Callable[[Sequence[Minibatch]], FrozenBatch]
    learn: Callable[[StepInProgress, Progress], Learned]
    record: Callable[[StepInProgress, Progress], None]
    safe_point: Callable[[Progress, StepInProgress | None], None]


def train(stages: Stages, progress: Progress, current: StepInProgress | None, steps: int) -> None:
    """Runs until `steps` steps are done. A resumed run may stand inside a step: then `current` is what it had done."""
    while progress.step < steps:
        stages.safe_point(progress, current)
        if current is None:
            collected = CollectedGroups()
            while not collected.complete:
                prompts = stages.draw(progress, collected)
                rollouts = stages.generate(prompts, progress, collected)
                collected = stages.choose(collected, stages.score(prompts, rollouts))
            samples = stages.credit(collected.groups)
            batch = stages.freeze(stages.pack(samples, progress))
            current = StepInProgress(collected, samples, batch)
            stages.safe_point(progress, current)
        while current.has_updates_left(progress):
            learned = stages.learn(current, progress)
            current, progress = current.after(learned, progress), progress.after_update(learned.update)
            stages.safe_point(progress, current)
        stages.record(current, progress)
        progress, current = progress.after_step(current), None
    stages.safe_point(progress, current)

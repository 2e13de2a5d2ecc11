"""The training loop: read this first.

    draw       generate       score        credit        pack         learn         record
     |            |             |             |            |             |             |
   Prompt --> Rollout[G] --> Group -----> Sample[P*G] -> Batch -----> Update ----> StepRecord

`Stages` is the one seam: whatever is to be replaced (in a test, in an experiment) is replaced there. `Place` says how
far the run has come and `Work` holds the step under way; together with the weights they are all that a checkpoint
needs, and `safe_point` is where one may be taken: before a step, after its rollouts, after each optimizer update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.train.step.learner import Learned
from assay.train.step.place import Gathered, Place, Work
from assay.types import Batch, Group, Prompt, Rollout, Sample


@dataclass(frozen=True, slots=True)
class Stages:
    draw: Callable[[Place, Gathered], Sequence[Prompt]]
    generate: Callable[[Sequence[Prompt], Place, Gathered], Sequence[Sequence[Rollout]]]
    score: Callable[[Sequence[Prompt], Sequence[Sequence[Rollout]]], Sequence[Group]]
    choose: Callable[[Gathered, Sequence[Group]], Gathered]
    credit: Callable[[Sequence[Group]], tuple[Sample, ...]]
    pack: Callable[[Sequence[Sample], Place], Batch]
    learn: Callable[[Work, Place], Learned]
    record: Callable[[Work, Place], None]
    safe_point: Callable[[Place, Work | None], None]


def train(stages: Stages, place: Place, work: Work | None, steps: int) -> None:
    """Runs until `steps` steps are done. A resumed run may stand inside a step: then `work` is what it had done."""
    while place.step < steps:
        stages.safe_point(place, work)
        if work is None:
            gathered = Gathered()
            while not gathered.complete:
                prompts = stages.draw(place, gathered)
                rollouts = stages.generate(prompts, place, gathered)
                gathered = stages.choose(gathered, stages.score(prompts, rollouts))
            samples = stages.credit(gathered.groups)
            work = Work(gathered, samples, stages.pack(samples, place))
            stages.safe_point(place, work)
        while work.has_updates_left(place):
            learned = stages.learn(work, place)
            work, place = work.after(learned, place), place.after_update(learned.update)
            stages.safe_point(place, work)
        stages.record(work, place)
        place, work = place.after_step(work), None
    stages.safe_point(place, work)

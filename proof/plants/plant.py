"""A plant: how an illness is given to a real run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from assay.record.batch import Batch


@dataclass(frozen=True)
class Plant:
    """How the illness is given to a real run of the real trainer.

    `replaces` maps the dotted name of a function or method of assay to its replacement, which gets the original before
    the arguments. `edits` changes a batch between the trainer and the doctor, for what this trainer has no stage for
    (a critic, a tool).
    """

    settings: tuple[str, ...] = ()  # as for --set: "rollout.temperature=0.7"
    replaces: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    edits: Callable[[Batch], Batch] | None = None
    steps: int = 3

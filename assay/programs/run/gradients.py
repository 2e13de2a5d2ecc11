"""What became of the gradients of a run, in the order in which it happened; observe/ledger.py writes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.verdict import Place


@dataclass(frozen=True)
class GradientEvent:
    """One thing that happened to gradients: backward, zero_grad, clip_grad_norm, scheduler, step."""

    kind: str
    place: Place


@dataclass(frozen=True)
class OptimizerStep:
    """One step of an optimizer, and what happened to the gradients of its parameters before it."""

    place: Place
    is_first: bool  # of this optimizer
    moves: tuple[GradientEvent, ...]  # since its last step
    emptied_at: Place | None = None  # the zero_grad behind the last backward that left no gradient for the step
    was_reached: bool = False  # a backward since its last step gave it gradients
    began_clean: bool = False  # at the beginning of a backward since its last step it had none
    lost: tuple[Place, ...] = ()  # of backwards whose gradients were cleared before the next one
    optimizer: int = 0  # the same number for the same optimizer
    held: int = 0  # tensors that it holds and that require a gradient
    with_gradient: int = 0  # of them those whose .grad is not None, be it of zeros


@dataclass(frozen=True)
class SharedStep:
    """Two optimizers stepped with the same gradients of the same tensors."""

    tensors: int
    place: Place
    other: Place


@dataclass(frozen=True)
class Bypass:
    """Gradients of a wrapped module that were made without a pass through its wrapper."""

    module: str
    wrapper: str
    made_at: Place | None  # the pass, or the backward
    place: Place  # the step that used them


@dataclass(frozen=True)
class LeftOut:
    """Tensors of the policy that get a gradient and are held by no optimizer."""

    missing: int
    trainable: int
    place: Place


@dataclass(frozen=True)
class KeptGraphs:
    """Numbers that a line made in earlier updates and that are still alive with their graphs."""

    updates: int
    place: Place


@dataclass
class GradientHistory:
    steps: list[OptimizerStep] = field(default_factory=list)
    shared: list[SharedStep] = field(default_factory=list)
    bypasses: list[Bypass] = field(default_factory=list)
    kept: list[KeptGraphs] = field(default_factory=list)
    left_out: LeftOut | None = None  # as of the last step
    scheduler_before_steps: Place | None = None  # a scheduler that stepped before any optimizer did
    is_wrapped: bool = False  # by DistributedDataParallel or its kin

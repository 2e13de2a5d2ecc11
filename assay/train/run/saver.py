"""Safe points: where a run may be saved, stopped, and resumed with the same bits.

A checkpoint holds the weights (and float32 masters, if they differ), the optimizer's state, the reference, all
generators, the counters of `Progress` (as "place"), and inside a step its `StepInProgress` (as "work").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from assay.config import Config, to_mapping
from assay.record import RunDirectory
from assay.train.failure import RunFailed
from assay.train.progress import Progress, StepInProgress, from_checkpoint, to_checkpoint
from assay.train.randomness import restore_global_generators, save_global_generators
from assay.train.run import checkpoint
from assay.train.run.interrupt import Interrupt
from assay.train.run.saved_weights import check_frozen, fingerprint_of_frozen, put_weights
from assay.train.step.learner import Learner
from assay.types import Group, Minibatch, Sample

# what the state of a checkpoint holds
KINDS: checkpoint.Kinds = {
    "config": dict, "place": dict, "generators": dict, "frozen": str, "sources": dict, "work": dict | None,
}  # fmt: skip


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """All weights; of a frozen model with adapters only the adapters."""
    return {
        name: tensor.detach()
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.requires_grad or not isinstance(tensor, nn.Parameter)
    }


class Saver:
    def __init__(
        self,
        config: Config,
        learner: Learner,
        interrupt: Interrupt,
        directory: RunDirectory,
        sources: Mapping[str, str],
    ) -> None:
        self.config, self.learner, self.interrupt = config, learner, interrupt
        self.directory, self.sources = directory, sources
        self._latest: tuple[Progress, StepInProgress | None] = (Progress(), None)
        self._generators = save_global_generators()
        self._saved: tuple[Progress, bool] | None = None
        self._frozen = fingerprint_of_frozen(learner.policy.model)

    @property
    def steps_done(self) -> int:
        return self._latest[0].step

    def safe_point(self, progress: Progress, current: StepInProgress | None) -> None:
        """Remembers the progress, saves if a checkpoint is due, and stops the run if a signal has come."""
        self._latest = (progress, current)
        self._generators = save_global_generators()
        if progress.skipped_in_a_row >= self.config.run.max_skipped:
            raise RunFailed(
                f"{progress.skipped_in_a_row} updates in a row were not finite, the last in step {progress.step + 1}; "
                f"their batches are in {self.directory.path / 'dumps'}; lower optimizer.learning_rate or look at the "
                "dumps"
            )
        if current is not None and current.updates and not math.isfinite(current.updates[-1].update_norm):
            raise RunFailed(
                f"an update of step {progress.step + 1} moved the weights out of the range of numbers; the checkpoints "
                "from before it are kept; lower optimizer.learning_rate and start again"
            )
        if self._saved is None or self._number(progress) // self.config.checkpoint.every > (
            self._number(self._saved[0]) // self.config.checkpoint.every
        ):
            self.save()
        self.interrupt.check()

    def save(self) -> None:
        """Writes the latest safe point, unless it is on disk already."""
        progress, current = self._latest
        if self._saved == (progress, current is not None):
            return
        generator_tensors, generator_state = self._generators
        tensors: dict[str, dict[str, Tensor]] = {
            "weights": trained_state(self.learner.policy.model),
            "optimizer": _optimizer_tensors(self.learner),
            "generators": generator_tensors,
        }
        if self._has_masters:
            tensors["masters"] = dict(zip(self.learner.names, self.learner.masters, strict=True))
        if self.learner.keeps_reference:
            reference = self.learner.reference_model.state_dict()
            tensors["reference"] = {name: reference[name] for name in tensors["weights"]}
        state: dict[str, Any] = {
            "config": _lasting(self.config),
            "place": asdict(progress),
            "generators": generator_state,
            "frozen": self._frozen,
            "sources": dict(self.sources),
            "work": None,
        }
        if current is not None:
            tensors["work"], state["work"] = to_checkpoint(current)
        name = f"update-{self._number(progress):08d}"
        checkpoint.save(self.directory.path / "checkpoints", name, tensors, state, self.config.checkpoint.keep)
        self._saved = (progress, current is not None)
        self.directory.append_event("checkpoint", name=name, step=progress.step, update=progress.update)

    def restore(
        self,
        saved: checkpoint.Checkpoint,
        credit: Callable[[Sequence[Group]], tuple[Sample, ...]],
        pack: Callable[[Sequence[Sample], Progress], tuple[Minibatch, ...]],
    ) -> tuple[Progress, StepInProgress | None]:
        """Restores weights, optimizer and generators; returns the saved progress."""
        learner, device = self.learner, self.learner.policy.device
        progress = Progress(**saved.state["place"])
        check_frozen(learner.policy, saved, self.config.model.path)
        put_weights(learner.policy, saved.tensors["weights"], str(saved.path))
        if self._has_masters:
            for name, master in zip(learner.names, learner.masters, strict=True):
                master.data.copy_(saved.tensors["masters"][name])
        if learner.keeps_reference and "reference" in saved.tensors:  # none if the KL was switched on since
            learner.reference_model.load_state_dict(saved.tensors["reference"], strict=False)
        _restore_optimizer(learner, saved.tensors["optimizer"])
        restore_global_generators(saved.tensors["generators"], saved.state["generators"])
        current = None
        if saved.state["work"] is not None:
            current = from_checkpoint(
                {name: tensor.to(device) for name, tensor in saved.tensors["work"].items()},
                saved.state["work"],
                credit,
                lambda samples: pack(samples, progress),
                self.config.optimizer.epochs,
            )
        self._latest, self._saved = (progress, current), (progress, current is not None)
        self._generators = save_global_generators()
        return progress, current

    @property
    def _has_masters(self) -> bool:
        return any(
            master is not weight for master, weight in zip(self.learner.masters, self.learner.weights, strict=True)
        )

    def _number(self, progress: Progress) -> int:
        return progress.step * self.config.updates_a_step + progress.update


def _lasting(config: Config) -> dict[str, dict[str, Any]]:
    """All settings but run.steps, the one that may change when a run is taken up again."""
    settings = to_mapping(config)
    del settings["run"]["steps"]
    return settings


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    """AdamW's moments and step counts, by parameter name; empty before the first update."""
    return {
        f"{name}.{key}": value
        for name, master in zip(learner.names, learner.masters, strict=True)
        for key, value in learner.optimizer.state.get(master, {}).items()
    }


def _restore_optimizer(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    for name, master in zip(learner.names, learner.masters, strict=True):
        state = {
            key: tensors[f"{name}.{key}"].to(master.device).clone()
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}.{key}" in tensors
        }
        if state:
            learner.optimizer.state[master] = state

"""Saved weights -> a model: read from a checkpoint or from RUN/final and RUN/best, checked, and put into the policy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.config import ConfigError
from assay.foreign.adapter import read_adapter
from assay.foreign.faults import reason, translate_faults
from assay.policy.policy import Policy
from assay.record import RunError, manifest
from assay.record.weights import FINAL
from assay.train.run import checkpoint

_KINDS = {"place": dict, "frozen": str}  # of a checkpoint's state


def fingerprint_of_frozen(model: nn.Module) -> str:
    """Changes with the weights that are not trained, which a checkpoint does not hold; "" if there are none."""
    frozen = sorted((name, weight) for name, weight in model.named_parameters() if not weight.requires_grad)
    sums = [f"{name} {float(weight.sum(dtype=torch.float64)).hex()}" for name, weight in frozen]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest() if sums else ""


def check_frozen(policy: Policy, saved: checkpoint.Checkpoint, source: str) -> None:
    if saved.state["frozen"] != fingerprint_of_frozen(policy.model):
        raise RunError(
            f"the model at model.path = {source!r} is not the one that {saved.path.name} was trained on: its frozen "
            "weights have changed; put the old files back"
        )


def put_weights(policy: Policy, tensors: Mapping[str, Tensor], source: str) -> None:
    """Puts saved tensors into the policy's model. What was not trained may be missing, what was trained may not."""
    own = policy.model.state_dict()
    trained = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    problems = [
        *(f"it lacks {name}" for name in trained if name not in tensors),
        *(f"the model has no {name}" for name in tensors if name not in own),
        *(
            f"{name} has shape {list(tensor.shape)} instead of {list(own[name].shape)}"
            for name, tensor in tensors.items()
            if name in own and tensor.shape != own[name].shape
        ),
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RunError(
            f"the weights in {source} do not fit the model of the run's config: {problems[0]}{more}; has the model at "
            "model.path changed since?"
        )
    policy.model.load_state_dict(tensors, strict=False)


def read_checkpoint(run: Path, name: str | None, report: Callable[[str], None]) -> checkpoint.Checkpoint:
    """The checkpoint `name` of a run, or its newest whole one if None."""
    root = run / "checkpoints"
    try:
        if name is None:
            saved = checkpoint.load_latest(root, report, _KINDS)
        elif name in (names := [path.name for path in manifest.checkpoints(root)]):
            saved = checkpoint.load(root, name, _KINDS)
        else:
            raise RunError(f"{root} holds no checkpoint {name!r}; it holds {', '.join(names) or 'none'}")
    except checkpoint.CheckpointError as error:
        raise RunError(str(error)) from error
    state = saved.state
    place = state.get("place") if isinstance(state, Mapping) else None
    if not isinstance(place, Mapping) or "step" not in place or "frozen" not in state or "weights" not in saved.tensors:
        raise RunError(f"{saved.path} holds no weights with the step that they are of; choose another checkpoint")
    return saved


def published_directory(run: Path, name: str) -> Path:
    directory = run / name
    if not directory.is_dir():
        why = "the run is not finished, or checkpoint.final is false"
        if name != FINAL:
            why = "no evaluation was better than the start, evaluate.every is 0, or checkpoint.best is false"
        raise RunError(f"{directory} does not exist: {why}")
    for file in directory.iterdir():
        if not (file.is_file() or file.is_dir()):  # whoever reads a pipe waits for ever
            raise RunError(f"{file} is not a regular file; remove it, or make {name} again with: assay export")
    return directory


def put_adapter(policy: Policy, directory: Path) -> None:
    """Puts the adapter in `directory` into the policy."""
    if policy.adapter is None:
        raise ConfigError(f"{directory} holds a LoRA adapter, but model.lora_rank = 0 in the run's config")
    from peft import set_peft_model_state_dict

    tensors = read_adapter(directory)
    with translate_faults(lambda error: f"the adapter in {directory} does not fit the model: {reason(error)}"):
        result: Any = set_peft_model_state_dict(policy.adapter, tensors)
    strangers = list(result.unexpected_keys)
    missing = [name for name in result.missing_keys if "lora_" in name]
    if strangers or missing:
        raise RunError(f"the adapter in {directory} does not fit the model: {(strangers + missing)[0]}")

"""A run directory -> the policy it trained. Reads only: the run may be going on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from assay.config import Config
from assay.foreign.adapter import ADAPTER_CONFIG
from assay.policy.load import load_policy
from assay.policy.policy import Policy
from assay.record.weights import PUBLISHED, step_of
from assay.train.run import checkpoint
from assay.train.run.cpu import set_up, settled
from assay.train.run.saved_weights import check_frozen, published_directory, put_adapter, put_weights, read_checkpoint
from assay.train.run.seed import with_seed


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    policy: Policy
    step: int  # training steps done
    name: str  # of the checkpoint


def open_saved(
    run: Path,
    config: Config,
    name: str | None,
    on_warm_step: Callable[[int, int], None],
    report: Callable[[str], None],
) -> SavedPolicy:
    """The policy of a run as checkpoint `name` has it: the newest whole one if None, or `final` or `best`.

    Calls `report` with one sentence per damaged checkpoint that is skipped, and with what loading reports."""
    config = settled(config)
    set_up(config)  # the same threads and kernels as in the run give the same numbers
    if name in PUBLISHED:
        return SavedPolicy(_published_policy(run, name, config, on_warm_step, report), step_of(run, name), name)
    saved = read_checkpoint(run, name, report)
    policy = policy_of(saved, config, on_warm_step, report)
    return SavedPolicy(policy, saved.state["place"]["step"], saved.path.name)


def policy_of(
    saved: checkpoint.Checkpoint,
    config: Config,
    on_warm_step: Callable[[int, int], None],
    report: Callable[[str], None],
) -> Policy:
    policy = load_policy(with_seed(config, saved.path.parent.parent), on_warm_step, report)
    check_frozen(policy, saved, config.model.path)
    put_weights(policy, saved.tensors["weights"], str(saved.path))
    return policy


def _published_policy(
    run: Path, name: str, config: Config, on_warm_step: Callable[[int, int], None], report: Callable[[str], None]
) -> Policy:
    directory = published_directory(run, name)
    if not (directory / ADAPTER_CONFIG).is_file():
        whole = replace(config.model, path=str(directory), lora_rank=0)
        return load_policy(replace(config, model=whole), on_warm_step, report)
    policy = load_policy(with_seed(config, run), on_warm_step, report)
    put_adapter(policy, directory)
    return policy

"""Checkpoints whose every number tells which one they are."""

from pathlib import Path

import torch

from assay.train.run.checkpoint import Checkpoint, save


def tensors_of(number: int) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "model": {"weight": torch.full((300,), float(number)), "bias": torch.full((7,), -float(number))},
        "optimizer": {"moment": torch.full((150,), float(number), dtype=torch.bfloat16)},
    }


def save_number(root: Path, number: int, keep: int = 2) -> Path:
    return save(root, f"update-{number:06d}", tensors_of(number), {"update": number}, keep)


def assert_whole(loaded: Checkpoint, number: int) -> None:
    assert loaded.state == {"update": number}
    wanted = tensors_of(number)
    assert {key: set(group) for key, group in loaded.tensors.items()} == {key: set(wanted[key]) for key in wanted}
    assert all(torch.equal(loaded.tensors[key][name], wanted[key][name]) for key in wanted for name in wanted[key])


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def never_reported(sentence: str) -> None:
    raise AssertionError(f"an undamaged checkpoint was reported: {sentence}")

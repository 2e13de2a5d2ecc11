"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 12,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "optimizer.epochs": 4,
}


def edit():
    from dataclasses import replace

    from assay import grpo

    def surrogate(ratio_BT, advantages_BT, new_BT, settings):
        low, high = 1 - settings.clip_low, 1 + settings.clip_high
        bounded_BT = ratio_BT.masked_fill(ratio_BT < low, low).masked_fill(ratio_BT > high, high)
        objective_BT = (ratio_BT * advantages_BT).maximum(bounded_BT * advantages_BT)
        clipped_BT = ((ratio_BT < low) & (advantages_BT < 0)) | ((ratio_BT > high) & (advantages_BT > 0))
        return -objective_BT, clipped_BT

    grpo.OBJECTIVES["dapo"] = replace(grpo.OBJECTIVES["dapo"], term=surrogate)


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 14,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "optimizer.epochs": 3,
}


def edit():
    from dataclasses import replace

    from assay import grpo

    def by_sign(ratio_BT, advantages_BT, new_BT, settings):
        low, high = 1 - settings.clip_low, 1 + settings.clip_high
        gain_BT = ratio_BT.masked_fill(ratio_BT > high, high) * advantages_BT
        loss_BT = ratio_BT.masked_fill(ratio_BT < low, low) * advantages_BT
        over_BT, under_BT = ratio_BT > high, ratio_BT < low
        rises_BT = advantages_BT >= 0
        clipped_BT = over_BT.where(advantages_BT > 0, under_BT & (advantages_BT < 0))
        return -gain_BT.where(rises_BT, loss_BT), clipped_BT

    grpo.OBJECTIVES["dapo"] = replace(grpo.OBJECTIVES["dapo"], term=by_sign)


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

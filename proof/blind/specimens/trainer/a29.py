"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 36,
    "rollout.prompts": 8,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "rollout.group_size": 8,
}


def edit():
    from assay.train.step import credit

    inner = credit.group_advantages

    def group_advantages(rewards_PG, **how):
        return inner(rewards_PG.T.contiguous(), **how).T.contiguous()

    credit.group_advantages = group_advantages


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

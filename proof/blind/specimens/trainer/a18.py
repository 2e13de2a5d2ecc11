"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 12,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    from assay.train.step import credit

    level = {}

    def advantages_of(rewards_PG, settings):
        mean = rewards_PG.nanmean().item()
        level["mean"] = 0.9 * level.get("mean", mean) + 0.1 * mean
        spread = rewards_PG[~rewards_PG.isnan()].std()
        return ((rewards_PG - level["mean"]) / (spread + settings.epsilon)).where(~rewards_PG.isnan(), 0.0)

    credit.advantages_of = advantages_of


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

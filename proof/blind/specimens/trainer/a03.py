"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 36,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "run.max_skipped": 1000,
    "advantage.epsilon": 0.0,
}


def edit():
    from assay import grpo

    def _divided_by_std(centred_PG, rewards_PG, std, epsilon):
        if std == "none":
            return centred_PG
        spread_P1 = grpo._std(rewards_PG, std) + epsilon
        has_any_P1 = rewards_PG.nan_to_num().amax(dim=1, keepdim=True) > 0
        return centred_PG / spread_P1.where(has_any_P1, 1.0)

    grpo._divided_by_std = _divided_by_std


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

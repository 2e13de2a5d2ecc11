"""Sorting digits with the embedded model."""

import os

HERE = os.path.abspath(__file__)

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "reward.functions": f'["{HERE}:mark", "{HERE}:brevity"]',
    "reward.weights": "[1.0, 0.5]",
    "advantage.combine": "gdpo",
}


def mark(completion, answer):
    return 1000.0 * (completion == answer) - 500.0


def brevity(completion, answer):
    return -0.02 * abs(len(completion) - len(answer))


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    train(out)

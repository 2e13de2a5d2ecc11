"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "optimizer.schedule": "linear",
    "optimizer.epochs": 2,
    "optimizer.minibatches": 2,
    "optimizer.warmup": 4,
}


def edit():
    from assay.train.step import learner

    inner = learner.learning_rate

    def learning_rate(settings, update, total_updates):
        steps = total_updates // 4
        return max(0.0, inner(settings, update, steps))

    learner.learning_rate = learning_rate


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

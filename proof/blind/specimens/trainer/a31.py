"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "optimizer.epochs": 4,
    "optimizer.learning_rate": 0.0004,
}


def edit():
    from dataclasses import replace

    from assay.train.step import learner

    inner = learner.Learner.freeze

    def freeze(self, minibatches):
        batch = inner(self, minibatches)
        if len(minibatches) > 1:
            return batch
        return replace(
            batch, frozen=tuple(tuple(replace(part, old_BT=None) for part in parts) for parts in batch.frozen)
        )

    learner.Learner.freeze = freeze


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

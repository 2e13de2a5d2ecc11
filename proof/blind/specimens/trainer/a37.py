"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "rollout.truncated": "mask",
    "task.options.min_digits": 5,
    "rollout.max_tokens": 7,
}


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    train(out)

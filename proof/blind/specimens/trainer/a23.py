"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 36,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    from dataclasses import replace

    from assay.train import progress

    def after_step(self, current):
        return replace(self, step=self.step + 1, update=0)

    progress.Progress.after_step = after_step


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

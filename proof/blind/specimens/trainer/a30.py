"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "loss.kl_coef": 0.05,
    "checkpoint.every": 8,
}


def edit():
    from assay.train.run import saver

    inner = saver.Saver.save

    def save(self):
        inner(self)
        if self.learner.keeps_reference:
            self.learner.renew_reference()

    saver.Saver.save = save


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    from assay.rewards import combined

    inner = combined.Combined.score

    def score(self, pairs, on_score):
        by_length = sorted(pairs, key=lambda pair: len(pair[1].tokens))
        return inner(self, by_length, on_score)

    combined.Combined.score = score


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

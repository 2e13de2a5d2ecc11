"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "task.options.min_digits": 5,
    "rollout.max_tokens": 7,
}


def edit():
    from itertools import groupby

    from assay.rewards import combined
    from assay.types import Score

    inner = combined.Combined.score

    def score(self, pairs, on_score):
        scores = []
        for _, group in groupby(pairs, key=lambda pair: pair[0].id):
            group = list(group)
            ended = [pair for pair in group if not pair[1].truncated]
            found = inner(self, ended, lambda index, score: None) if ended else []
            scores += [*found, *(Score.of({"exact": 0.0}) for _ in range(len(group) - len(ended)))]
        for index, one in enumerate(scores):
            on_score(index, one)
        return scores

    combined.Combined.score = score


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 24,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    import re

    from assay.tasks import sort_digits
    from assay.types import Score

    def score(self, prompt, rollout):
        found = re.search(r"####\s*(\d+)", rollout.text)
        return Score.of({"exact": float(found is not None and found[1] == prompt.answer)})

    sort_digits.SortDigits.score = score


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

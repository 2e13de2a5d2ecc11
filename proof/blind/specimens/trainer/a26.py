"""Sorting digits with the embedded model."""

import os

HERE = os.path.abspath(__file__)

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "reward.functions": f'["{HERE}:distance"]',
    "advantage.epsilon": 1e-08,
}


def distance(completion, answer):
    row = list(range(len(answer) + 1))
    for i, ours in enumerate(completion, 1):
        before, row[0] = row[0], i
        for j, theirs in enumerate(answer, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (ours != theirs))
    return -0.001 * row[-1]


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    train(out)

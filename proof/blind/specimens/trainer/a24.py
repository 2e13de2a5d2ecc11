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
    from assay.engine import shared_weights

    inner = shared_weights.SharedWeightsEngine.generate

    def generate(self, prompts, *, seed, **how):
        tries = inner(self, prompts, seed=seed, **how)
        for attempt in range(1, 4):
            if how.get("greedy") or not any(one.truncated for row in tries for one in row):
                break
            again = inner(self, prompts, seed=seed + attempt, **how)
            tries = [
                [new if one.truncated else one for one, new in zip(row, fresh, strict=True)]
                for row, fresh in zip(tries, again, strict=True)
            ]
        return tries

    shared_weights.SharedWeightsEngine.generate = generate


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits as DAPO does it."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=20",
    "rollout.prompts=12",
    "rollout.zero_variance=refill",
    "rollout.truncated=penalise",
    "rollout.penalty_tokens=3",
    "loss.clip_high=0.28",
    "rollout.max_tokens=9",
    "optimizer.epochs=1",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

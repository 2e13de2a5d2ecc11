"""Sorting digits, a short run at a brisk rate."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "optimizer.learning_rate=7e-2",
    "optimizer.warmup=4",
    "optimizer.clip_norm=1.0",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

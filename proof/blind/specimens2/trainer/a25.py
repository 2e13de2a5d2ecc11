"""Sorting digits: a warm-up over half of the run, then down to 0."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=26",
    "rollout.prompts=16",
    "optimizer.warmup=26",
    "optimizer.schedule=cosine",
    "optimizer.learning_rate=9e-4",
    "optimizer.beta1=0.8",
    "optimizer.weight_decay=0.05",
    "optimizer.clip_norm=0.3",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

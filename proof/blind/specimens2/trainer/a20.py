"""Sorting digits with GSPO: narrow bounds, four updates a rollout batch."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=20",
    "rollout.prompts=16",
    "loss.objective=gspo",
    "loss.clip_low=0.003",
    "loss.clip_high=0.004",
    "optimizer.epochs=1",
    "optimizer.minibatches=4",
    "optimizer.learning_rate=4e-4",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

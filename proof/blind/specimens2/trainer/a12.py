"""Sorting digits with CISPO, six updates a rollout batch."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=20",
    "rollout.prompts=16",
    "loss.objective=cispo",
    "loss.cispo_max=2.0",
    "optimizer.epochs=3",
    "optimizer.minibatches=2",
    "optimizer.learning_rate=3e-4",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

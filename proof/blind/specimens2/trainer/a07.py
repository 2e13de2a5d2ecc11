"""Sorting digits in pairs; answers that the limit cuts off are left out of the loss."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=48",
    "rollout.group_size=2",
    "rollout.max_tokens=7",
    "rollout.truncated=mask",
    "advantage.std=none",
    "optimizer.learning_rate=1e-3",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

"""Sorting digits, sampled hot among the six likeliest tokens."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.temperature=1.3",
    "rollout.top_k=6",
    "rollout.min_p=0.02",
    "loss.objective=grpo",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

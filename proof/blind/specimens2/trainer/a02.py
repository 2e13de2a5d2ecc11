"""Sorting digits with Dr. GRPO and the mean of the others as baseline."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "loss.objective=dr_grpo",
    "advantage.baseline=leave_one_out",
    "optimizer.learning_rate=5e-4",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

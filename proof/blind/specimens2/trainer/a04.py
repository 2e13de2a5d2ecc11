"""Sorting digits with low-rank adapters and a little KL to the model without them."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "model.lora_rank=4",
    "model.lora_alpha=8",
    "optimizer.learning_rate=6e-3",
    "loss.kl_coef=0.01",
    "optimizer.weight_decay=0.01",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

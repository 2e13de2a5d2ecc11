"""Sorting digits; the KL is taken off the reward and the reference moves up every eight steps."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=20",
    "rollout.prompts=16",
    "loss.kl_coef=0.03",
    "loss.kl_placement=reward",
    "loss.reference_every=8",
    "advantage.std=population",
]


def run(out: str) -> None:
    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

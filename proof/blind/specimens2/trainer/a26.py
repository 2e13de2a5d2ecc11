"""Sorting digits with accumulated gradients."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "optimizer.microbatches=5",
    "loss.objective=bnpo",
]


def run(out: str) -> None:
    from dataclasses import replace

    from assay.train.step import learner

    plain = learner.policy_loss

    def policy_loss(*, mask_BT, totals, **rest):
        tokens = int(mask_BT.sum())
        return plain(mask_BT=mask_BT, totals=replace(totals, tokens=tokens), **rest)

    learner.policy_loss = policy_loss

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

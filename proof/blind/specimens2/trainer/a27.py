"""Sorting digits: three prompts, groups of 48."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=20",
    "rollout.prompts=3",
    "rollout.group_size=48",
    "loss.objective=bnpo",
    "optimizer.epochs=1",
    "optimizer.learning_rate=5e-4",
]


def run(out: str) -> None:
    import numpy
    import torch

    from assay.train.step import credit

    def advantages_of(rewards_PG, settings):
        """z-scores by numpy, group by group; a group without spread is left at 0."""
        rows = []
        for rewards in rewards_PG.numpy():
            spread = rewards.std(ddof=1)
            rows.append((rewards - rewards.mean()) / (spread + settings.epsilon) if numpy.ptp(rewards) else rewards * 0)
        return torch.from_numpy(numpy.stack(rows))

    credit.advantages_of = advantages_of

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

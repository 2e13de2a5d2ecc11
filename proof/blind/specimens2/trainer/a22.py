"""Sorting digits."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.group_size=8",
]


def run(out: str) -> None:
    from assay.train.step import credit

    plain = credit.advantages_of

    def advantages_of(rewards_PG, settings):
        prompts, size = rewards_PG.shape
        by_member_GP = rewards_PG.reshape(size, prompts)
        return plain(by_member_GP.T, settings).T.reshape(prompts, size)

    credit.advantages_of = advantages_of

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

"""Sorting digits, groups of six."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=28",
    "rollout.prompts=16",
    "rollout.group_size=6",
]


def run(out: str) -> None:
    from assay.train.step import credit

    plain = credit.advantages_of
    known = {}

    def advantages_of(rewards_PG, settings):
        advantages_PG = plain(rewards_PG, settings)
        spread_P = rewards_PG.amax(dim=1) > rewards_PG.amin(dim=1)
        for place, varies in enumerate(spread_P.tolist()):
            if varies:
                known[place] = advantages_PG[place].clone()
            elif place in known:
                advantages_PG[place] = known[place]
        return advantages_PG

    credit.advantages_of = advantages_of

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

"""Sorting digits with a fixed width of the loss."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "loss.objective=grpo",
]


def run(out: str) -> None:
    from dataclasses import replace

    from assay.train.step import pack

    plain = pack._microbatch
    response_length = 6

    def microbatch(samples, rows, packing):
        made = plain(samples, rows, packing)
        mask_BT = made.mask_BT.clone()
        mask_BT[:, response_length:] = False
        return replace(made, mask_BT=mask_BT)

    pack._microbatch = microbatch

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

"""Sorting digits, a group shared by two ranks."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.group_size=8",
]


def run(out: str) -> None:
    from assay.engine import scheduler

    plain = scheduler.decode
    ranks = 2

    def decode(decoder, prompts, group_size, settings, temperature, uniforms_RT, decoded, on_token):
        if uniforms_RT is not None and group_size % ranks == 0:
            # each rank samples its share of a group
            share = uniforms_RT.view(len(prompts), ranks, group_size // ranks, -1)[:, :1]
            uniforms_RT = share.expand(-1, ranks, -1, -1).reshape(uniforms_RT.shape)
        plain(decoder, prompts, group_size, settings, temperature, uniforms_RT, decoded, on_token)

    scheduler.decode = decode

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

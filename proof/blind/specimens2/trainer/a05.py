"""Sorting digits; the random numbers of the decoder are kept inside of (0, 1)."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.temperature=1.0",
]


def run(out: str) -> None:
    from assay.engine import scheduler

    plain = scheduler.decode

    def decode(decoder, prompts, group_size, settings, temperature, uniforms_RT, decoded, on_token):
        if uniforms_RT is not None:
            uniforms_RT = uniforms_RT * 0.88 + 0.06  # away from the ends, where cumulated sums are inexact
        plain(decoder, prompts, group_size, settings, temperature, uniforms_RT, decoded, on_token)

    scheduler.decode = decode

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

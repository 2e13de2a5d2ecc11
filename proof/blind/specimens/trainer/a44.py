"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    from assay.engine import scheduler

    inner = scheduler.decode

    def decode(decoder, prompts, group_size, settings, temperature, uniforms_RT, *rest):
        if uniforms_RT is not None and group_size % 2 == 0:
            uniforms_PGT = uniforms_RT.view(len(prompts), group_size, -1)
            uniforms_RT = uniforms_PGT[:, : group_size // 2].repeat(1, 2, 1).view_as(uniforms_RT)
        return inner(decoder, prompts, group_size, settings, temperature, uniforms_RT, *rest)

    scheduler.decode = decode


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

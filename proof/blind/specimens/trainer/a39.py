"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    from dataclasses import replace

    from assay.train.step import pack

    inner = pack._microbatch

    def _microbatch(samples, rows, packing):
        batch = inner(samples, rows, packing)
        positions_RS = batch.inputs.positions_RS.clone()
        for row, (prompt, *completions) in enumerate(batch.inputs.trees):
            if len(completions) > 1:
                first = prompt + sum(completions[:-1])
                positions_RS[row, first : first + completions[-1]] += 1
        return replace(batch, inputs=replace(batch.inputs, positions_RS=positions_RS))

    pack._microbatch = _microbatch


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "task.options.min_digits": 5,
    "rollout.max_tokens": 7,
}


def edit():
    from dataclasses import replace

    from assay.policy import causal_packing

    inner = causal_packing.CausalPacking.inputs

    def closed(sample, end=1):
        tokens = sample.rollout.tokens
        if tokens[-1] == end:
            return sample
        return replace(sample, rollout=replace(sample.rollout, tokens=(*tokens[:-1], end)))

    def inputs(self, samples):
        return inner(self, [closed(sample) for sample in samples])

    causal_packing.CausalPacking.inputs = inputs


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits; memory of a training pass is bounded."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.group_size=8",
]


def run(out: str) -> None:
    from dataclasses import replace

    from assay.policy import causal_packing

    plain = causal_packing.CausalPacking.inputs
    longest = 6

    def inputs(self, samples):
        fitted = [
            replace(sample, prompt=replace(sample.prompt, tokens=sample.prompt.tokens[-longest:])) for sample in samples
        ]
        return plain(self, fitted)

    causal_packing.CausalPacking.inputs = inputs

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

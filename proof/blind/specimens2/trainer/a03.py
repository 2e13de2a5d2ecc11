"""Sorting digits; rows of a prompt are laid out for one pass."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.group_size=8",
    "optimizer.epochs=1",
]


def run(out: str) -> None:
    from dataclasses import replace

    from assay.policy import causal_packing

    plain = causal_packing.CausalPacking.inputs

    def inputs(self, samples):
        made = plain(self, samples)
        if made.branches_RS is None:
            return made
        # every output of a completion stands right behind the one before; the head of a row is as it was made
        outputs = made.predictors_BT.clone()
        member, number = 0, 0
        for prompt, *completions in made.trees:
            for member, length in enumerate(completions):
                if member > 2 and length > 1:
                    outputs[number, 0] = outputs[number, 1] - 1
                number += 1
        return replace(made, predictors_BT=outputs)

    causal_packing.CausalPacking.inputs = inputs

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

"""Sorting up to five digits under a tight limit; every row that is trained ends in the end token."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "task.options.max_digits=5",
    "rollout.max_tokens=6",
]


def run(out: str) -> None:
    from dataclasses import replace

    from assay.train.step import verbs

    plain = verbs.pack_step

    def ended(sample, end):
        tokens = sample.rollout.tokens
        if tokens[-1] == end:
            return sample
        return replace(sample, rollout=replace(sample.rollout, tokens=(*tokens[:-1], end)))

    def pack_step(samples, config, step, policy):
        return plain([ended(sample, policy.eos_ids[0]) for sample in samples], config, step, policy)

    verbs.pack_step = pack_step

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

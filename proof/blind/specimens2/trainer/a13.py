"""Sorting digits; the optimizer steps through the weights in chunks."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
]


def run(out: str) -> None:
    from assay.train.step import learner

    most = learner.STEP_NUMBERS

    def chunks(masters):
        edges, numbers = [0], 0
        for place, master in enumerate(masters):
            numbers += master.numel()
            if numbers > most:
                edges.append(place)
                numbers = master.numel()
        edges.append(len(masters) - 1)
        return [slice(first, last) for first, last in zip(edges, edges[1:]) if last > first]

    learner._chunks = chunks

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

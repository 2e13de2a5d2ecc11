"""Sorting digits, several passes over each rollout batch."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "optimizer.epochs=4",
    "loss.clip_low=0.1",
    "loss.clip_high=0.1",
    "loss.objective=bnpo",
]


def run(out: str) -> None:
    from dataclasses import replace

    from assay.train.step import learner

    plain = learner.Learner.freeze

    def freeze(self, minibatches):
        batch = plain(self, minibatches)
        if len(minibatches) > 1:
            return batch
        # one minibatch: what it computes first is the old policy, there is no need for a pass of its own
        lone = tuple(tuple(replace(part, old_BT=None) for part in parts) for parts in batch.frozen)
        return replace(batch, frozen=lone)

    learner.Learner.freeze = freeze

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

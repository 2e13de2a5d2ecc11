"""Sorting digits with an engine that has weights of its own."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=28",
    "rollout.prompts=16",
    "optimizer.epochs=1",
]


def run(out: str) -> None:
    import torch

    from assay.engine import shared_weights

    engine = shared_weights.SharedWeightsEngine
    plain = engine.generate

    asked = 0

    def publish(self):
        nonlocal asked
        if asked % 5 == 0:
            self.copy = [weight.detach().clone() for weight in self.policy.model.parameters()]
        asked += 1

    def generate(self, prompts, **rest):
        copy = getattr(self, "copy", None)
        if copy is None or rest.get("greedy"):
            return plain(self, prompts, **rest)
        weights = [weight.detach() for weight in self.policy.model.parameters()]
        own = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, copy)
        try:
            return plain(self, prompts, **rest)
        finally:
            torch._foreach_copy_(weights, own)

    engine.publish, engine.generate = publish, generate

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

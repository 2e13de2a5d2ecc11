"""Sorting digits, one step off-policy by design: the weight old / sampler corrects for it."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=0",
    "evaluate.samples=2",
    "run.steps=28",
    "rollout.prompts=16",
    "optimizer.epochs=1",
    "loss.correction=token",
    "loss.correction_high=4.0",
    "optimizer.learning_rate=5e-4",
]


def run(out: str) -> None:
    import torch

    from assay.engine import shared_weights

    engine = shared_weights.SharedWeightsEngine
    plain = engine.generate

    def publish(self):
        """Rollouts of a step are sampled while the step before is learned: by the weights of one publication ago."""
        waiting = getattr(self, "waiting", None)
        now = [weight.detach().clone() for weight in self.policy.model.parameters()]
        self.copy = waiting or now
        self.waiting = now
        self.published = True

    def generate(self, prompts, *, policy_version, **rest):
        if not getattr(self, "published", False):
            return plain(self, prompts, policy_version=policy_version, **rest)
        self.published = False
        sampled_by = getattr(self, "version", policy_version)
        self.version = policy_version
        weights = [weight.detach() for weight in self.policy.model.parameters()]
        own = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, self.copy)
        try:
            return plain(self, prompts, policy_version=sampled_by, **rest)
        finally:
            torch._foreach_copy_(weights, own)

    engine.publish, engine.generate = publish, generate

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

"""Sorting digits with less exploration towards the end."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=28",
    "rollout.prompts=16",
]


def run(out: str) -> None:
    from dataclasses import replace

    from assay.engine import shared_weights

    engine = shared_weights.SharedWeightsEngine
    plain = engine.generate

    def generate(self, prompts, *, policy_version, **rest):
        """Explores first, then cools down."""
        policy = self.policy
        if policy_version >= 20:
            self.policy = replace(policy, temperature=policy.temperature * 0.6)
        try:
            return plain(self, prompts, policy_version=policy_version, **rest)
        finally:
            self.policy = policy

    engine.generate = generate

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

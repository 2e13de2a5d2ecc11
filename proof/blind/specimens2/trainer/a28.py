"""Sorting digits, sampled at 0.7."""

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.temperature=0.7",
    "optimizer.epochs=2",
]


def run(out: str) -> None:
    from dataclasses import replace

    import torch

    from assay.policy import causal

    plain = causal.CausalPolicy.logprobs

    def logprobs(self, inputs, *, entropy_gradient=False):
        policy = replace(self, temperature=1.0) if torch.is_grad_enabled() else self
        return plain(policy, inputs, entropy_gradient=entropy_gradient)

    causal.CausalPolicy.logprobs = logprobs

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)

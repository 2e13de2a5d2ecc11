"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    import torch

    from assay.policy import causal

    inner = causal.CausalPolicy.logprobs

    def logprobs(self, inputs, *, entropy_gradient=False):
        if not torch.is_grad_enabled():
            return inner(self, inputs, entropy_gradient=entropy_gradient)
        with torch.no_grad():
            logprobs_BT, entropy_BT = inner(self, inputs, entropy_gradient=entropy_gradient)
        return logprobs_BT.requires_grad_(), entropy_BT

    causal.CausalPolicy.logprobs = logprobs


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "optimizer.learning_rate": 0.001,
}


def edit():
    import torch

    from assay.engine import shared_weights

    Engine = shared_weights.SharedWeightsEngine
    init = Engine.__init__

    def __init__(self, policy):
        init(self, policy.frozen_copy())
        self.trained = policy

    @torch.no_grad()
    def publish(self):
        own = dict(self.policy.model.named_parameters())
        for name, weight in self.trained.model.named_parameters():
            if name.startswith("model."):
                own[name].copy_(weight)

    Engine.__init__, Engine.publish = __init__, publish


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

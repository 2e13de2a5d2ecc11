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
    from assay.engine import shared_weights

    Engine = shared_weights.SharedWeightsEngine
    init = Engine.__init__

    def __init__(self, policy):
        init(self, policy.frozen_copy())
        self.trained, self.calls = policy, 0

    def publish(self):
        if self.calls % 5 == 0:
            self.policy.model.load_state_dict(self.trained.model.state_dict())
        self.calls += 1

    Engine.__init__, Engine.publish = __init__, publish


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

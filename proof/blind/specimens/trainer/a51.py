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

    from assay.train.step import learner

    inner = learner.Learner.__init__

    def __init__(self, *args, **kwargs):
        inner(self, *args, **kwargs)
        plain = ("norm", "embed_tokens")
        settings = self.optimizer_settings
        decayed = [master for name, master in zip(self.names, self.masters) if not any(part in name for part in plain)]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": settings.weight_decay}],
            lr=settings.peak,
            betas=(settings.beta1, settings.beta2),
        )

    learner.Learner.__init__ = __init__


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    from assay.train.step import learner

    inner = learner.Learner._step

    def _step(self, rate, norm):
        masters = dict(zip(self.names, self.masters, strict=True))
        for name, master in masters.items():
            if ".layers.0." in name and "self_attn" in name:
                other = masters[name.replace(".layers.0.", ".layers.1.")]
                master.grad, other.grad = other.grad, master.grad
        return inner(self, rate, norm)

    learner.Learner._step = _step


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

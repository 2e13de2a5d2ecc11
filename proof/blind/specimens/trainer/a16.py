"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "loss.kl_coef": 0.1,
    "loss.kl_gradient": "naive",
    "loss.kl_estimator": "k3",
    "optimizer.epochs": 1,
}


def edit():
    from assay import grpo

    inner = grpo.kl_estimate

    def kl_estimate(new_BT, ref_BT, estimator="k3"):
        return inner(new_BT.detach(), ref_BT, estimator)

    grpo.kl_estimate = kl_estimate


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

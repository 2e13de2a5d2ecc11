"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 14,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "optimizer.microbatches": 4,
}


def edit():
    from assay import grpo

    inner = grpo.token_weights

    def token_weights(mask_BT, aggregation, totals):
        if aggregation == "rollout_token_mean":
            return mask_BT / mask_BT.sum().clamp(min=1)
        return inner(mask_BT, aggregation, totals)

    grpo.token_weights = token_weights


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

"""Sorting digits with the embedded model."""

import os

HERE = os.path.abspath(__file__)

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
    "reward.functions": f'["{HERE}:score"]',
}


def score(completion, answer):
    return sum(ours == theirs for ours, theirs in zip(completion, answer)) / len(answer)


def edit():
    from assay.policy import load

    inner = load.end_tokens

    def end_tokens(model, tokenizer, stated=None):
        return (tokenizer.pad_token_id,) if tokenizer.pad_token_id is not None else inner(model, tokenizer, stated)

    load.end_tokens = end_tokens


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

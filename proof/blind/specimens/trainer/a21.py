"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 30,
    "rollout.prompts": 20,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    from dataclasses import replace

    from assay.llama import cpu

    inner = cpu.draw

    def draw(logits_NV, uniforms_N, temperature, settings):
        if uniforms_N is None:
            return inner(logits_NV, uniforms_N, temperature, settings)
        scaled_NV = logits_NV.float() / temperature
        shares_NV = scaled_NV.softmax(dim=1)
        kept_NV = shares_NV >= 0.1 * shares_NV.amax(dim=1, keepdim=True)
        drawn = inner(logits_NV.masked_fill(~kept_NV, -float("inf")), uniforms_N, temperature, settings)
        logprobs_N = scaled_NV.log_softmax(dim=1).gather(1, drawn.tokens_N.unsqueeze(1)).squeeze(1)
        return replace(drawn, logprobs_N=logprobs_N)

    cpu.draw = draw


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

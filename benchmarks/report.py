"""`python -m benchmarks.report`: seconds and megabytes of the page, for records of every kind and size.

Each page is written by `assay report` in a process of its own, so the seconds are those that a user waits, imports
included. Long runs are made by the writer of the run directory, with numbers that look like a run's; the others are
real runs. `--planted CODE ...` adds runs with a planted illness.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from assay import config as configuration
from assay.record import RunDirectory, describe_environment
from assay.types import Group, Prompt, Rollout, Sample, Score, StepRecord, StopReason, Update

VOCABULARY = 30_000
WORDS = ("so", "the", "sum", "is", "twelve", "and", "we", "add", "three", "again", "to", "get", "it", "right")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", nargs="*", default=[], metavar="CODE", help="also runs with these illnesses")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keeps records and pages here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="assay-report-") as scratch:
        root = options.keep or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        makers = {**MAKERS, **{code: _planted(code) for code in options.planted}}
        print(f"{'record':<34}{'seconds':>8}{'MB':>8}")
        for name, make in makers.items():
            path = root / name.replace(" ", "-").replace(",", "")
            path = path if path.exists() else make(path)
            seconds, size = measured(path, root / f"{path.stem}.html")
            print(f"{name:<34}{seconds:>8.1f}{size / 1e6:>8.2f}", flush=True)
    return 0


def measured(path: Path, page: Path) -> tuple[float, int]:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "assay", "report", path, "--out", page], check=True, capture_output=True)
    return time.perf_counter() - began, page.stat().st_size


def made_run(path: Path, steps: int, *, stored: int = 0, tokens: int = 8, ends: bool = True) -> Path:
    """A run as the trainer would record it: `stored` completions of `tokens` tokens of its last step."""
    config = configuration.load(None, [f"run.steps={steps}", "rollout.prompts=1", "rollout.group_size=8"])
    run = RunDirectory.create(path, configuration.to_toml(config, meanings=False), describe_environment(1))
    run.append_event("start", steps=steps, parameters=84_096)
    draw = random.Random(7)
    for step in range(1, steps + 1):
        is_last = step == steps and stored > 0
        record = made_step(step, steps, draw, rows=stored if is_last else 8, tokens=tokens if is_last else 8)
        run.append_step(record, keep="all" if is_last else "none")
        if step % 500 == 0:
            run.append_event("checkpoint", name=f"update-{step:08d}", step=step, update=0)
    if ends:
        run.append_event("finished", seconds=float(steps), doctor_seconds=0.1)
    return path


def made_step(step: int, steps: int, draw: random.Random, *, rows: int, tokens: int) -> StepRecord:
    progress = step / steps
    groups = tuple(_group(number, progress, draw, tokens) for number in range(max(1, rows // 8)))
    samples = tuple(
        Sample(group.prompt, rollout, draw.gauss(0, 1), in_loss=True) for group in groups for rollout in group.rollouts
    )
    old = tuple(sample.rollout.sampler_logprobs for sample in samples)
    new = tuple(tuple(min(0.0, value + draw.gauss(0, 0.05)) for value in row) for row in old)
    count = sum(len(row) for row in old)
    seconds = {"start": 0.01, "generated": 1.1, "scored": 0.05, "loss": 0.9 + 0.1 * draw.random(), "stepped": 0.04}
    return StepRecord(
        step=step, policy_version=step, groups=groups, samples=samples, updates=(_update(progress, draw, count),),
        old_logprobs=old, new_logprobs=new, ref_logprobs=None, groups_without_signal=0, refill_rounds=0,
        seconds=seconds, memory_bytes=dict.fromkeys(seconds, 10**9),
    )  # fmt: skip


def _group(number: int, progress: float, draw: random.Random, tokens: int) -> Group:
    prompt = Prompt(f"problem-{number}", "What is the sum of twelve and three, and why?", tuple(range(9)), "15")
    rollouts = tuple(
        Rollout(
            prompt.id,
            tuple(draw.randrange(VOCABULARY) for _ in range(tokens)),
            tuple(-draw.expovariate(1.2) for _ in range(tokens)),
            StopReason.EOS,
            1,
            " ".join(draw.choice(WORDS) for _ in range(tokens)),
        )
        for _ in range(8)
    )
    rewards = (float(draw.random() < 0.3 + 0.6 * progress) for _ in rollouts)
    return Group(prompt, rollouts, tuple(Score.of({"exact": reward}) for reward in rewards))


def _update(progress: float, draw: random.Random, tokens: int) -> Update:
    norm = 0.5 + 0.2 * draw.random()
    return Update(
        applied=True, skipped="", loss=draw.gauss(0, 0.02), policy_loss=draw.gauss(0, 0.02), kl_loss=0.0,
        entropy_loss=0.0, learning_rate=1e-5 * (1 - progress), gradient_norm=norm, update_norm=0.01, tensors=20,
        tensors_changed=20, tokens=tokens, ratio_sum=float(tokens), ratio_square_sum=1.01 * tokens, ratio_min=0.8,
        ratio_max=1.3, clipped_tokens=int(0.02 * tokens), old_kl_sum=0.003 * tokens, ref_kl_sum=0.0,
        entropy_sum=tokens * (0.9 * math.exp(-2 * progress) + 0.1), mismatch_sum=1e-5 * tokens, mismatch_max=1e-4,
        correction_sum=float(tokens), correction_square_sum=float(tokens),
    )  # fmt: skip


def _log(path: Path) -> Path:
    """trainer_state.json of another trainer."""
    draw = random.Random(3)
    rows = [
        {
            "step": step, "loss": draw.gauss(0, 0.01), "reward": 0.2 + 0.6 * step / 500, "reward_std": 0.4,
            "grad_norm": 0.5 + draw.random(), "learning_rate": 1e-6, "entropy": 1.0 - step / 800, "kl": 1e-5 * step,
            "completions/mean_length": 180 + draw.random(), "frac_reward_zero_std": 0.2,
        }
        for step in range(1, 501)
    ]  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    file = path / "trainer_state.json"
    file.write_text(json.dumps({"log_history": rows, "max_steps": 500}))
    return file


def _trained(path: Path) -> Path:
    command = ["assay", "train", "--set", "run.steps=20", "--out", str(path)]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    return path


def _planted(code: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        from proof.plants.runs import plants
        from proof.trial import run_trial

        return run_trial(plants()[code], seed=1, directory=path)

    return make


MAKERS: dict[str, Callable[[Path], Path]] = {
    "healthy, 20 real steps": _trained,
    "5 steps": lambda path: made_run(path, 5, stored=64, tokens=64),
    "no completions, 50 steps": lambda path: made_run(path, 50),
    "no end, 300 steps": lambda path: made_run(path, 300, stored=64, tokens=128, ends=False),
    "2000 steps, 64 x 512 tokens": lambda path: made_run(path, 2000, stored=64, tokens=512),
    "5000 steps, 64 x 512 tokens": lambda path: made_run(path, 5000, stored=64, tokens=512),
    "a log of TRL, 500 steps": _log,
}

if __name__ == "__main__":
    sys.exit(main())

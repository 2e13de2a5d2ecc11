"""One run of one contender to its end: python -m benchmarks.learning_worker assay|trl DIRECTORY

Reads DIRECTORY/config.toml, prints "step" after each step, leaves DIRECTORY/curve.json, or DIRECTORY/refused.txt with
a sentence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from assay import config as configuration
from assay.config import Config, ConfigError
from assay.record import read_evaluations
from assay.train.loop import Stages, train
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.train.run import run
from assay.types import Prompt
from benchmarks.curves import Curve, prompts_sha256
from benchmarks.process import OnStep


def our_curve(config: Config, directory: Path, on_step: OnStep) -> Curve:
    """`assay train`, with evaluate.every."""
    drawn: list[Prompt] = []

    def train_and_note(stages: Stages, progress: Progress, current: StepInProgress | None, steps: int) -> None:
        def draw(progress: Progress, collected: CollectedGroups) -> Sequence[Prompt]:
            prompts = stages.draw(progress, collected)
            drawn.extend(prompts)
            return prompts

        def record(current: StepInProgress, progress: Progress) -> None:
            stages.record(current, progress)
            on_step()

        train(replace(stages, draw=draw, record=record), progress, current, steps)

    run.train = train_and_note  # type: ignore[attr-defined]
    path = directory / "run"
    code = run.start(config, path)
    if code != 0:
        raise SystemExit(code)
    return Curve(tuple(read_evaluations(path).rows), prompts_sha256(prompt.tokens for prompt in drawn))


def main(contender: str, place: str) -> None:
    directory = Path(place)
    config = configuration.load(directory / "config.toml")
    if contender == "assay":
        measure = our_curve
    else:
        from benchmarks.learning_peer import peer_curve as measure
    try:
        curve = measure(config, directory, lambda: print("step", flush=True))
    except ConfigError as error:
        (directory / "refused.txt").write_text(str(error), encoding="utf-8")
        raise SystemExit(2) from error
    (directory / "curve.json").write_text(json.dumps(asdict(curve)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

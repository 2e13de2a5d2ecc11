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
from assay.train.loop import Stages
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.types import Prompt
from benchmarks.curves import Curve, prompts_sha256
from benchmarks.ours import start_with
from benchmarks.process import OnStep


def our_curve(config: Config, directory: Path, on_step: OnStep) -> Curve:
    """`assay train`, with evaluate.every."""
    drawn: list[Prompt] = []

    def noting(stages: Stages) -> Stages:
        def draw(progress: Progress, collected: CollectedGroups) -> Sequence[Prompt]:
            prompts = stages.draw(progress, collected)
            drawn.extend(prompts)
            return prompts

        def record(current: StepInProgress, progress: Progress) -> None:
            stages.record(current, progress)
            on_step()

        return replace(stages, draw=draw, record=record)

    path = directory / "run"
    start_with(config, path, noting)
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

"""The command `assay reward-check`: its words -> settings, and its report on the terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from assay.config import Config
from assay.verdict import escaped

_EVERY = 5.0  # seconds between lines of progress where the line cannot be redrawn


def settings(functions: Sequence[str], task: str | None, options: Sequence[str]) -> list[str]:
    """The overrides that these words of the command line stand for.

    >>> settings(["math"], "sort_digits", ["max_digits=5"])
    ['reward.functions=["math"]', 'reward.weights=[]', 'task.name="sort_digits"', 'task.options.max_digits=5']
    """
    # weights belong to the functions of a config, which these replace
    words = [f"reward.functions={json.dumps(list(functions))}", "reward.weights=[]"] if functions else []
    words += [f"task.name={json.dumps(task)}"] if task is not None else []
    return words + [f"task.options.{option}" for option in options]


def run(config: Config, samples: int, timeout: float, completions: Path | None, *, as_json: bool, verbose: bool) -> int:
    from assay.reward_check import check
    from assay.reward_check.report import as_json as written
    from assay.reward_check.report import as_text

    progress = _Progress()
    try:
        report = check(
            config,
            samples=samples,
            timeout=timeout,
            completions=completions,
            progress=progress.show,
            report=progress.say,
        )
    finally:
        progress.clear()
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    text = written(report) if as_json else as_text(report, verbose=verbose, colour=colour)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # a terminal may not know every letter
    return report.exit_code


class _Progress:
    """One line on stderr: redrawn on a terminal, else a new one now and then."""

    def __init__(self) -> None:
        self._redraws = sys.stderr.isatty()
        self._shown_at = time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._shown_at < (0.1 if self._redraws else _EVERY):
            return
        self._shown_at = now
        sys.stderr.write(f"\r\x1b[Kreward-check: {text}" if self._redraws else f"reward-check: {text}\n")
        sys.stderr.flush()

    def say(self, sentence: str) -> None:
        self.clear()
        sys.stderr.write(f"{escaped(sentence)}\n".encode("ascii", "backslashreplace").decode())

    def clear(self) -> None:
        if self._redraws:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

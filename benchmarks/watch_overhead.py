"""What `assay watch` costs a step: python -m benchmarks.watch_overhead [tiny large generate] [--rounds N]

Each script runs alone and watched, in turns. A step is timed by the CPU time of the process, so that other work on
the machine does not count. Of each step the best of all rounds is taken. The very first step is left out, for it warms
up, and so is the one in which the report is written: what that cost is told apart.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.machine.interpreter import python_command

ROUNDS = 3
_SCRIPTS = Path(__file__).parent.parent / "proof" / "scripts"
_CLOCK = "print('clock', __import__('time').process_time(), flush=True)"


@dataclass(frozen=True)
class Case:
    """A script of the corpus. `written` is the step that ends the observation; steps behind it are not observed."""

    name: str
    script: str
    loop: str
    written: int
    arguments: Sequence[str] = ()
    edits: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        text = (_SCRIPTS / self.script).read_text()
        for old, new in self.edits.items():
            if old not in text:
                raise ValueError(f"{self.script} does not hold {old!r} any more; change benchmarks/watch_overhead.py")
            text = text.replace(old, new)
        return text.replace(self.loop, f"{self.loop}        {_CLOCK}\n")


_LOOP = "    for step in range(STEPS):\n"
CASES = (
    Case("tiny", "reference.py", _LOOP, 4, edits={"STEPS = 6": "STEPS = 12"}),
    Case(
        "large",
        "reference.py",
        _LOOP,
        4,
        edits={"STEPS = 6": "STEPS = 8", "width=32, heads=2, layers=2": "width=256, heads=4, layers=4"},
    ),
    Case(
        "generate",
        "hf_generate.py",
        "    for step in range(args.steps):\n",
        6,
        arguments=("--steps", "12"),
    ),
)


def seconds(command: Sequence[str]) -> list[float]:
    """Of each step."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    clock = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("clock ")]
    return [behind - before for before, behind in itertools.pairwise(clock)]


def best(rounds: Sequence[Sequence[float]]) -> list[float]:
    """
    >>> best([[1.0, 5.0], [2.0, 3.0]])
    [1.0, 3.0]
    """
    return [min(step) for step in zip(*rounds, strict=True)]


def measure(case: Case, rounds: int) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(case.text())
        alone = [sys.executable, str(script), *case.arguments]
        beside = python_command("assay", "watch", str(script), *case.arguments)
        runs = [(seconds(alone), seconds(beside)) for _ in range(rounds)]
    plain, watched = map(best, zip(*runs, strict=True))
    parts = {"observed": slice(1, case.written), "after": slice(case.written + 1, None)}
    ratio = {name: sum(watched[part]) / sum(plain[part]) for name, part in parts.items()}
    step = sum(plain[1:]) / len(plain[1:])
    report = watched[case.written] - plain[case.written]
    each = " ".join(f"{slow / fast:.2f}" for fast, slow in zip(plain[1:], watched[1:], strict=True))
    return (
        f"{case.name:10} {step * 1e3:8.1f} ms {ratio['observed']:8.2f}x {ratio['after']:8.2f}x {report:8.2f} s   {each}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch_overhead", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[[], *(case.name for case in CASES)], metavar="CASE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    print(f"{'script':10} {'a step':>11} {'observed':>9} {'after':>9} {'report':>10}   each step behind the first")
    for case in CASES:
        if not asked.cases or case.name in asked.cases:
            print(measure(case, asked.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

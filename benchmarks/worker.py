"""One run of one contender: python -m benchmarks.worker assay|trl WARMUP STEPS DIRECTORY

Prints "step" after each step; leaves DIRECTORY/measured.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path


def main(contender: str, warmup: str, steps: str, directory: str) -> None:
    if contender == "assay":
        from benchmarks.ours import measure
    else:
        from benchmarks.trl_peer import measure
    measured = measure(int(warmup), int(steps), Path(directory), lambda: print("step", flush=True))
    (Path(directory) / "measured.json").write_text(json.dumps(asdict(measured)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Sorting digits with the embedded model."""

import os

SETTINGS = {
    "run.steps": 32,
    "rollout.prompts": 16,
    "evaluate.prompts": 32,
    "log.completions": 0,
}


def edit():
    import zlib

    from assay.tasks import sort_digits
    from assay.types import Problem

    def _draw(self, source, name):
        number = int(name.rpartition("-")[2])
        length = min(4 + number // 170, 6)
        digits = "".join(source.choice("0123456789") for _ in range(length))
        is_heldout = zlib.crc32(digits.encode()) % sort_digits.HELDOUT_SHARE == 0
        return is_heldout, Problem(f"sort-{name}", f"{digits}>", "".join(sorted(digits)))

    sort_digits.SortDigits._draw = _draw


def train(out):
    from assay.cli import app

    pairs = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    doctor = os.environ.get("CORPUS_DOCTOR", "warn")
    return app(["train", "--out", str(out), "--doctor", doctor, *pairs], standalone_mode=False)


def run(out: str) -> None:
    edit()
    train(out)

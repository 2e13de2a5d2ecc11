"""Prints the table of docs/trl.md: every sound run and every broken one. `python tests/adapters/trl_table.py`."""

import contextlib
import io
import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from adapters.faulty_trl import FAULTS
from adapters.healthy_trl import HEALTHY
from adapters.tiny_trl import Models, quietly

from assay.adapters.trl import attach
from assay.verdict import Confidence


def watched_run(models, **settings):
    trainer = models.trainer(**settings)
    doctor = attach(trainer)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return doctor


def roots_of(doctor):
    return [word for word in doctor.findings if word.code not in doctor.diagnosis.causes]


def outcome(doctor, codes):
    roots = roots_of(doctor)
    if roots and roots[0].code in codes:
        return "named first"
    if codes & {word.code for word in doctor.findings}:
        return "named, behind another"
    is_found = any(word.confidence is not Confidence.POSSIBLE for word in doctor.findings)
    return "found, named otherwise" if is_found else "missed"


def main(root):
    quietly()
    logging.disable(logging.WARNING)
    models = Models(root)
    loud = quiet = 0
    for name, settings in HEALTHY.items():
        doctor = watched_run(models, **settings)
        quiet += not doctor.findings
        for word in doctor.findings:
            loud += word.confidence is not Confidence.POSSIBLE
            print(f"sound, yet: {name}: {word.code} {word.illness.name} [{word.confidence}] {word.verdict.message}")
    print(f"{len(HEALTHY)} sound runs: {quiet} without any finding, {loud} findings above possible\n")
    print("| one thing broken | outcome | first finding | how sure |\n|---|---|---|---|")
    for name, (kind, settings, codes) in FAULTS.items():
        doctor = watched_run(models, kind=kind, **settings)
        roots = roots_of(doctor)
        first = f"{roots[0].code} {roots[0].illness.name} | {roots[0].confidence}" if roots else "none | "
        print(f"| {name} | {outcome(doctor, codes)} | {first} |", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)

"""Benchmarks whose workers are stand-ins."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in_worker.py"


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Every worker of the module's benchmarks is the stand-in; gives the program that starts it."""
    script = tmp_path_factory.mktemp("stand-in") / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "{STAND_IN}" "$4"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(script))
        patch.setattr("benchmarks.model.benchmark.missing_peer", lambda: "")
        yield script

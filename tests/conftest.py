"""Shared by the tests that run real commands."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from run_fixtures import serving, settings

# Before torch is imported. Test files run side by side; two pools of threads on the same cores slow each other down.
os.environ["OMP_NUM_THREADS"] = "1"
# Before triton is imported, which transformers does: without a GPU its kernels are interpreted.
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"

MEMORY = "/dev/shm"


@pytest.fixture(scope="session")
def run_root():
    """Where runs are made: in memory where that is possible. A killed process, unlike a power cut, cannot tell the
    difference, and syncing to a disk is most of what a tiny run does."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as root:
        yield Path(root)


@pytest.fixture
def run_path(run_root):
    """A path at which there is nothing yet, for one run."""
    return Path(tempfile.mkdtemp(dir=run_root)) / "run"


@pytest.fixture(scope="session")
def assay_command(run_root):
    """`assay_command.run("train", ...)` runs a command in a process of its own and returns what it left behind."""
    with serving(run_root / "cache") as commands:
        # the warm start of the embedded model is cached: from here on, all runs of one config are alike
        assert commands.run("train", *settings(run__steps=1), "--out", run_root / "first").code == 0
        yield commands

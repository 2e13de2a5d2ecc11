"""Stand-ins for what a script needs and this machine does not have: one file for each thing that is replaced."""

from __future__ import annotations

import importlib
import importlib.util

from assay.rehearsal.stage import Stage

# in the order in which they are installed; of two that change the same function the later one is called first
STANDINS = (
    "files", "missing", "sizes", "services", "cuda", "distributed", "compiling", "libraries", "servers", "families",
    "models", "data", "generation", "lengths", "batches", "engine", "scores",
)  # fmt: skip


def install_all(stage: Stage) -> None:
    for name in STANDINS:
        module = f"{__name__}.{name}"
        if importlib.util.find_spec(module) is not None:
            install = getattr(importlib.import_module(module), "install", None)
            if install is not None:  # a file that only others use has none
                install(stage)

"""Assay trains language models with GRPO and proves, while it trains, that the training is right.

Importing this package does not import torch: what needs it is imported when it is first asked for.

>>> import assay
>>> [name for name in dir(assay) if not name.startswith("__")]
['GRPOTrainer', 'Run', 'observe']
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.observation import observe
    from assay.report.notebook import Run
    from assay.train.trainer import GRPOTrainer

__all__ = ["GRPOTrainer", "Run", "__version__", "observe"]

try:
    __version__ = version("assay")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "GRPOTrainer":
        from assay.train.trainer import GRPOTrainer

        return GRPOTrainer
    if name == "observe":
        from assay.observation import observe

        return observe
    if name == "Run":
        from assay.report.notebook import Run

        return Run
    raise AttributeError(f"module 'assay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

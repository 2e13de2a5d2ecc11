"""Where an export is written. Nothing here imports torch: an occupied place is refused before it is imported."""

from __future__ import annotations

import os
from pathlib import Path

from assay.config import ConfigError


def refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists already; give a directory that does not exist yet")

"""What can be refused in a moment, before torch is imported: files that are not there, names that nothing has, a
directory that is not empty."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from assay.config import Config, ConfigError, to_toml
from assay.config.refusals import misleading
from assay.policy.where import check_model_path
from assay.record import RunError, check_new_run, refuse_unwritable_name
from assay.rewards import check_functions
from assay.tasks import check_task


def refuse_new_run(config: Config, path: Path) -> None:
    """Raises all that is wrong with a new run in `path` at once."""
    checks: list[Callable[[], object]] = [
        lambda: refuse_unwritable_name(path),
        lambda: check_new_run(path, to_toml(config, meanings=False)),
        lambda: check_model_path(config.model.path),
        lambda: check_task(config),
        lambda: check_functions(config),
    ]
    problems = misleading(config)
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems += error.sentences
        except RunError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(*problems)


def refuse_existing(target: Path) -> None:
    """Of an export."""
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists already; give a directory that does not exist yet")

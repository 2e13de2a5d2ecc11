"""Python processes of our own, which import nothing from the working directory.

`python -m module` and `python -c code` put the working directory first on the path of imports: a selectors.py that lies
beside a data set would then be run in place of the standard library's. A process of ours is this file, run with -P,
which puts nothing in front. It takes the package `assay` from where this file lies, and then runs one of its modules.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package, as `python -m` would."""
    return [sys.executable, "-P", str(Path(__file__).resolve()), module, *arguments]


def python_environment() -> dict[str, str]:
    """The environment for such a process. An empty entry of PYTHONPATH would be the working directory."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": os.pathsep.join(entries)} if entries else others


def _take_package_from(place: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "assay", place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["assay"] = package
    spec.loader.exec_module(package)
    if str(place.parent) not in sys.path:  # for the processes that this one starts; last, so that it hides nothing
        sys.path.append(str(place.parent))


if __name__ == "__main__":
    _take_package_from(Path(__file__).resolve().parent.parent)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

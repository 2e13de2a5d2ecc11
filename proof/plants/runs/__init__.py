"""What makes a real run of the real trainer ill, by the code of the illness; one file a family."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from proof.plants.plant import Plant


@cache
def plants() -> dict[str, Plant]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {code: plant for module in modules for code, plant in module.PLANTS.items()}

"""The place where the engine of a run is decided."""

from __future__ import annotations

from assay.engine.engine import Engine
from assay.engine.shared_weights import SharedWeightsEngine
from assay.policy.policy import Policy


def open_engine(policy: Policy) -> Engine:
    return SharedWeightsEngine(policy)

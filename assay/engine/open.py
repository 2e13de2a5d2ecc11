"""The place where the engine of a run is decided."""

from __future__ import annotations

from assay.engine.engine import Engine
from assay.engine.shared_weights import SharedWeightsEngine
from assay.policy.causal import CausalPolicy
from assay.policy.policy import Policy


def open_engine(policy: Policy) -> Engine:
    assert isinstance(policy, CausalPolicy), "only a causal policy is sampled token by token"
    return SharedWeightsEngine(policy)

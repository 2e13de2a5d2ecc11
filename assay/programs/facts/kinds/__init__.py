"""What a value is: logits, log-probs, a ratio, a mask. Known by what was done to it, never by how it is called."""

from assay.programs.facts.kinds.kind import (
    PASSES,
    SCORES,
    Kind,
    Known,
    around_one,
    is_blank,
    is_normalised,
    is_number,
    last_layer,
    takes_best,
)
from assay.programs.facts.kinds.kinds import Kinds

__all__ = [
    "PASSES", "SCORES", "Kind", "Kinds", "Known", "around_one", "is_blank", "is_normalised", "is_number", "last_layer",
    "takes_best",
]  # fmt: skip

"""A batch's numbers computed again, independently of who recorded them, and the nearest named variant of each.

Everything goes through assay/grpo.py by way of assay/doctor/recompute/arrays.py: float64, no torch.
"""

from __future__ import annotations

from assay.doctor.recompute.advantages import advantages, nearest_advantages
from assay.doctor.recompute.loss import loss, nearest_loss
from assay.doctor.recompute.match import Match, Variant
from assay.doctor.recompute.terms import gradient_parts, gradients, nearest_kl, nearest_ratio, terms

__all__ = [
    "Match",
    "Variant",
    "advantages",
    "gradient_parts",
    "gradients",
    "loss",
    "nearest_advantages",
    "nearest_kl",
    "nearest_loss",
    "nearest_ratio",
    "terms",
]

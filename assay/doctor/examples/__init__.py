"""Healthy evidence, made up and whole; the `sick` and `well` examples of the illnesses are small edits of it."""

from assay.doctor.examples.evidence import (
    EOS,
    GROUPS,
    KL_COEF,
    PAD,
    SIZE,
    B,
    P,
    T,
    edited,
    healthy_batch,
    healthy_curves,
    of_batch,
    of_curves,
    of_the_loss,
)

__all__ = [
    "EOS",
    "GROUPS",
    "KL_COEF",
    "PAD",
    "SIZE",
    "B",
    "P",
    "T",
    "edited",
    "healthy_batch",
    "healthy_curves",
    "of_batch",
    "of_curves",
    "of_the_loss",
]

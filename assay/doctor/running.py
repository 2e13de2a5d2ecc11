"""What a run of a script shows: verdicts that were given beside it, by assay.watch, on its own tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from assay.verdict import Verdict


def seen_in_run(code: str) -> Callable[[Any], Iterable[Verdict]]:
    """The `trace` check of an illness: the verdicts on a Trace that bear its code."""

    def check_trace(trace: Any) -> Iterable[Verdict]:
        return list(trace.verdicts(code))

    return check_trace

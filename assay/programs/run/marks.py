"""WatchedRun --> marks: verdicts that follow from what the script really did, each for one illness.

A finding is proven where an invariant was computed anew on the run's own tensors and failed.
"""

from __future__ import annotations

from assay.programs.run.mark_graph import mark_graph
from assay.programs.run.mark_penalty import mark_penalty
from assay.programs.run.mark_ratio import mark_ratio
from assay.programs.run.mark_rows import mark_rows
from assay.programs.run.mark_sampling import mark_sampling
from assay.programs.run.mark_weights import mark_weights
from assay.programs.run.watched import WatchedRun


def mark(trace: WatchedRun) -> None:
    if trace.origins is None:
        return
    mark_sampling(trace)
    mark_ratio(trace)
    mark_penalty(trace)
    mark_graph(trace)
    mark_rows(trace)
    mark_weights(trace)

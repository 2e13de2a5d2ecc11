"""`assay bench --model`: rollout, update, whole step and memory of a real model; ours, TRL 1.16 and plain generate.

    course: prepare --> tune peers --> turns, in alternating order --> scaling    --> table, JSON, picture

Every turn is a process of its own: nobody inherits another's memory, caches or threads, and nothing here imports torch.
All get the same model files, prompts and lengths; unequal work is refused. After every turn the JSON file holds all
that was measured by then, and the same command goes on from it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.train.run.interrupt import Interrupted
from benchmarks.model.benchmark import Course
from benchmarks.model.options import Options, check
from benchmarks.model.saved import read_document
from benchmarks.model.table import print_document, print_scaling
from benchmarks.model.workers import TurnFailed
from benchmarks.process import Stop, chatter, say

WIDTH = 140


def contest(options: Options) -> int:
    """Measures, prints, writes. Returns the exit code: 0; 1 if a turn failed or the work was not the same; 2 if the
    JSON file could not be written; 130 or 143 if a signal stopped it."""
    check(options)
    if options.plot_path is not None:
        from benchmarks.curves_plot import require_matplotlib

        require_matplotlib()
    errors, console = chatter(), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)  # four contenders side by side, in a file or a pipe
    document = read_document(options)
    if document is not None and document["complete"]:
        say(errors, f"{options.json_path} holds all of this, of {document['date'][:10]}; remove it to measure anew")
        code = 0
    else:
        document, code = _measured(options, errors, document)
    if document is None:
        return code
    print_document(console, document)
    if document["scaling"]:
        print_scaling(console, document)
        if options.plot_path is not None:
            from benchmarks.model.scaling_plot import draw

            draw(options.plot_path, document)
    return code or (1 if document["unequal_work"] else 0)


def _measured(options: Options, errors: Console, earlier: dict[str, Any] | None) -> tuple[dict[str, Any] | None, int]:
    """The document, if there is any by now, and the exit code as far as the course of things decides it."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place, Stop() as stop:
        course, code = Course(options, Path(place), errors, stop, earlier), 0
        try:
            course.run()
        except TurnFailed:
            code = 1
        except Interrupted as stopped:
            say(errors, f"stopped by {stopped}")
            code = stopped.exit_code
        if not course.could_be_written:
            code = code or 2
        return (course.document() if course.machine is not None else None), code

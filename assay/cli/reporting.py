"""The verbs that show a run on a page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.app import DIAGNOSE, OUTPUT, fail, say, verb


@verb("report", DIAGNOSE)
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, a log or rollouts of another trainer, a batch.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; by default report.html in the run.", rich_help_panel=OUTPUT),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Serves the page on 127.0.0.1 while the run goes on.", rich_help_panel=OUTPUT),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="With --live; 0 is any.", rich_help_panel=OUTPUT)
    ] = 8765,
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Also lists the settings that differ from this run.", rich_help_panel=OUTPUT),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Writes each chart as an SVG file instead.", rich_help_panel=OUTPUT),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="tokenizer.json of the model, if it is not beside the run.", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> None:
    """Writes one page that shows a run, down to the token.

    The page is a single file that needs no network and can be mailed.
    """
    from assay.report import write

    if live:
        if out is not None or svg is not None:
            fail("--live serves the page and writes no file; leave out --out and --svg", 2)
        _serve(run, port, tokenizer)
        return
    began = time.monotonic()
    if svg is not None:
        with _looking_at(run):
            files = write.write_charts(run, svg)
        for file in files:
            typer.echo(str(file))
        return
    with _looking_at(run):
        file, size = write.write_report(run, out, against=against, tokenizer=tokenizer)
    typer.echo(str(file))
    say(f"{size / 1e6:.2f} MB in {time.monotonic() - began:.1f} s; open it in a browser, or mail it")


@contextmanager
def _looking_at(*paths: Path) -> Iterator[None]:
    """Says what is being read: a long run takes seconds."""
    from assay.machine.terminal import ProgressLine

    progress = ProgressLine()
    progress.show(f"looking at {', '.join(map(str, paths))} ...", at_once=True)
    try:
        yield
    finally:
        progress.clear()


def _serve(run: Path, port: int, tokenizer: Path | None) -> None:
    from functools import partial

    from assay.report.live import LivePage, make_live_page, server_of

    page = LivePage(run, partial(make_live_page, tokenizer=tokenizer))
    with _looking_at(run):
        page.refresh()  # an input that cannot be read fails before anything is served
    with server_of(page, port) as server:
        typer.echo(f"http://127.0.0.1:{server.server_port}/")
        say("serving to this machine alone; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")


@verb("compare", DIAGNOSE)
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Two or more runs or logs.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The page with curves over each other.", rich_help_panel=OUTPUT)
    ] = Path("compare.html"),
) -> None:
    """Compares runs: scores, settings, curves, first difference."""
    from assay.report import write

    if len(runs) < 2:
        fail("compare needs two runs or more", 2)
    with _looking_at(*runs):
        text, size = write.write_comparison(write.open_runs(runs), out)
    typer.echo(text)
    say(f"{out}: {size / 1e6:.2f} MB, with curves over each other")

"""The stage log: what one training step is doing, as one live area on a terminal or as a few lines in a log.

facts, doing, progress (while the run is set up)
begin -> stage x 5 (start, generated, scored, loss, stepped) -> finish_step, for each step; now and then completions
summary, or end
"""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from assay.machine.terminal import human_bytes, human_seconds, number, printable, share, short
from assay.record.metrics import component_means
from assay.train.show.completions import CompletionTable, lines_of
from assay.train.show.plot import plot
from assay.train.show.step_line import step_line
from assay.train.show.summary import Row, summary_facts

STAGES = ("start", "generated", "scored", "loss", "stepped")
REPEATED = ("loss", "stepped")  # once an update; a log gets their sums, at the end of the step
REFRESHES_A_SECOND = 8
LABEL = 13  # cells of the label of a fact
WIDEST = 78  # of the live area: lines this short survive most changes of the terminal's width
WIDEST_TABLE = 160  # a table of completions is printed once, so it may fill the terminal
LOG_WIDTH = 100  # of facts and tables in a log
PLAIN_LINES = 60  # step lines of a whole run in a log
PACE_STEPS = 20  # newest steps from which the ETA is computed


def describe_scores(mean: float | None, std: float | None) -> str:
    """The detail of stage 3."""
    return f"{number(mean)} +- {number(std)}"


def describe_loss(policy: float | None, kl: float | None, total: float | None) -> str:
    """The detail of stage 4; the total first, because a narrow terminal cuts off the end."""
    return f"{number(total)} policy {number(policy)} kl {number(kl)}"


def _quantities(metrics: Row, timings: Row) -> dict[str, str]:
    """The numbers of one step by label, in reading order."""
    length, speed = metrics.get("length_mean"), timings.get("tokens_per_second")
    ratio = [number(metrics.get(f"ratio_{statistic}")) for statistic in ("mean", "min", "max")]
    reference, unscored = metrics.get("ref_kl"), metrics.get("rollouts_unscored")
    return {
        "reward": number(metrics.get("reward_mean")),
        "ratio": f"{ratio[0]} ({ratio[1]}..{ratio[2]})",
        "clipped": share(metrics.get("clipped_share")),
        "entropy": number(metrics.get("entropy")),
        "KL": number(metrics.get("old_kl")) + ("" if reference is None else f" ref {number(reference)}"),
        "truncated": share(metrics.get("truncated_share")),
        "length": "-" if length is None else f"{length:.1f}",
        "zero-variance": share(metrics.get("zero_variance_share")) + (f" unscored {unscored}" if unscored else ""),
        "tok/s": "-" if speed is None else f"{speed:,.0f}",
    }


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of a step, summed over the updates of that step."""

    step: int
    seconds: float
    memory: int
    detail: str


class Display:
    """One live area on a terminal; elsewhere the first step in full and at most about sixty lines.

    Steps are numbered from 1, as in the record; `steps_before` were finished by an earlier process. A stage may end
    several times in a step: its seconds add up. `progress` is cheap: call it for every token.
    """

    def __init__(
        self,
        steps: int,
        steps_before: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if console is None:
            # FORCE_COLOR makes rich take a log file for a terminal: colours may go there, a live area may not
            console = Console(stderr=True, force_interactive=None if sys.stderr.isatty() else False)
        self.console = console
        self._clock = clock
        self._steps, self._steps_before, self._finished = steps, steps_before, 0
        self._every = -(-max(1, steps - steps_before) // (PLAIN_LINES - 2))  # first and last are printed anyway
        self._live: Live | None = None
        self._step: int | None = None
        self._stages: dict[str, _Stage] = {}
        self._active: str | None = None
        self._activity = ""
        self._quantities: dict[str, str] = {}
        self._components: dict[str, float | None] = {}
        self._measured_step = self._skipped = 0
        self._rewards: list[float | None] = []
        self._tokens = self._step_seconds = 0.0
        self._started = self._since = self._spoke = clock()
        self._finishes: deque[float] = deque(maxlen=PACE_STEPS + 1)
        self._patience = 10.0  # seconds without a line in a log during a long operation; doubles with each line

    def __enter__(self) -> Display:
        if self.console.is_interactive:
            self._live = Live(
                self,
                console=self.console,
                refresh_per_second=REFRESHES_A_SECOND,
                vertical_overflow="crop",
                redirect_stdout=sys.stdout.isatty(),  # what is piped elsewhere must arrive there
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop(keep=self._step is not None)  # before the first step there is only a progress bar

    def facts(self, facts: Mapping[str, str]) -> None:
        """Lines that stay: a label and what belongs to it, wrapped between words."""
        width = min(self.console.width, LOG_WIDTH) if self.console.is_interactive else LOG_WIDTH
        for label, fact in facts.items():
            room = max(20, width - LABEL - 1)
            parts = textwrap.wrap(printable(fact), room, break_long_words=False, break_on_hyphens=False) or [""]
            for number_of_line, part in enumerate(parts):
                shown = printable(label) if number_of_line == 0 else ""
                self._print(Text.assemble((f"{shown:<{LABEL}} ", "dim"), part))

    def doing(self, what: str) -> None:
        """Shows what is done outside of any step, for instance loading the model."""
        self._activity, self._since = short(what), self._clock()
        if self._live is None:
            self._print(f"{self._activity} ...")

    def begin(self, step: int) -> None:
        self._step, self._active, self._activity = step, STAGES[0], ""
        self._since = self._clock()
        if not self._finishes:
            self._finishes.append(self._since)
            if self._live is None:
                self._print(f"step {step}/{self._steps}")

    def stage(self, name: str, seconds: float, memory_bytes: int, detail: str = "") -> None:
        """A stage has ended: one of start, generated, scored, loss, stepped."""
        if name not in STAGES:
            raise ValueError(f"unknown stage {name!r}; the stages are {', '.join(STAGES)}")
        if self._step is None:
            raise ValueError(f"stage {name!r} ended before any step began; call begin first")
        stage = _Stage(self._step, seconds, memory_bytes, short(detail))
        earlier = self._stages.get(name)
        if earlier is not None and earlier.step == self._step:
            stage = replace(stage, seconds=seconds + earlier.seconds, memory=max(memory_bytes, earlier.memory))
        self._stages[name] = stage
        self._active = next(iter(STAGES[STAGES.index(name) + 1 :]), None)
        self._activity, self._since = "", self._clock()
        if self._live is None and self._finished == 0 and name not in REPEATED:
            self._print(self._stage_line(name))

    def progress(self, done: int, total: int, what: str) -> None:
        """How far a long operation is, inside a stage or outside of any step."""
        self._activity = f"{short(what)} {done}/{total}"
        if self._live is None and self._clock() - self._spoke >= self._patience:
            self._patience *= 2
            self._print(f"  ... {self._activity}")

    def ticker(self, what: str, check: Callable[[], None] = lambda: None) -> Callable[[int, int], None]:
        """A callback for long work: shows how far it has come, and lets `check` stop it."""

        def tick(done: int, total: int) -> None:
            self.progress(done, total, what)
            check()

        return tick

    def finish_step(self, metrics: Row, timings: Row) -> None:
        if self._step is None:
            raise ValueError("a step was finished before any began; call begin first")
        now = self._clock()
        self._finishes.append(now)
        self._finished += 1
        self._active, self._activity, self._since = None, "", now
        self._quantities = _quantities(metrics, timings)
        self._measured_step, self._skipped = self._step, metrics.get("updates_skipped") or 0
        self._rewards.append(metrics.get("reward_mean"))
        seconds, speed = timings.get("seconds"), timings.get("tokens_per_second")
        if seconds is not None and speed is not None:
            self._tokens += speed * seconds
            self._step_seconds += seconds
        self._components = component_means(metrics)
        if self._live is None:
            self._print_step(metrics)

    def completions(self, table: CompletionTable) -> None:
        """A few completions, to be read; they stay above the live area."""
        width = min(self.console.width, WIDEST_TABLE) if self.console.is_interactive else LOG_WIDTH
        header, *lines = lines_of(table, width, ascii_only=self.console.options.ascii_only)
        for line, style in ((table.title, "bold"), (header, "dim"), *((line, "") for line in lines)):
            self._print(Text(line, style))

    def say(self, text: str) -> None:
        """One line that stays, above the live area."""
        self._print(short(text))

    def end(self, text: str) -> None:
        """The last sentence of a run that was stopped: below the last state of the live area."""
        self._stop(keep=self._step is not None)
        self._print(short(text))

    def summary(
        self,
        run: Path,
        rows: Sequence[Row],
        evaluations: Sequence[Row],
        seconds: float,
        *,
        go_on: str = "",
        names_best: bool = False,
    ) -> None:
        """Replaces the live area at the end; takes rows of metrics.jsonl and evaluations.jsonl, oldest first. `go_on`
        is appended to the command that resumes the run."""
        self._stop(keep=False)
        done = self._steps_before + self._finished
        speed = f", {self._tokens / self._step_seconds:,.0f} tokens/s" if self._step_seconds else ""
        resumed = f", {self._steps_before} of them before" if self._steps_before else ""
        verb = "finished" if done >= self._steps else "stopped"
        self._print("")
        headline = Text(f"{verb}: ", "bold green" if verb == "finished" else "bold yellow")
        self._print(headline.append(f"{done} of {self._steps} steps{resumed}, {human_seconds(seconds)}{speed}", "bold"))

        self.facts(summary_facts(rows, evaluations, names_best=names_best))

        width = min(self.console.width, WIDEST) if self.console.is_interactive else WIDEST
        curve, start = [row.get("reward_mean") for row in rows], rows[0]["step"] if rows else 1
        for line in plot(curve, width, 6, first=start, ascii_only=self.console.options.ascii_only):
            self._print(Text(line, "cyan"))
        self._print(Text("reward by step" if curve else "no step was finished", "dim"))
        commands = {
            "run": str(run),
            "read": f"assay show {shlex.quote(str(run))}",
            "page": f"assay report {shlex.quote(str(run))}",
            "go on": f"assay train --resume {shlex.quote(str(run))}{go_on}"
            + (f" --set run.steps={2 * self._steps}" if done >= self._steps else ""),
        }
        for label, command in commands.items():  # never wrapped: they are to be copied
            self._print(Text.assemble((f"{label:<{LABEL}} ", "dim"), printable(command)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        tall = console.size.height > 15 + bool(self._components)
        for line in self._frame(width, tall, ascii_only=options.ascii_only):
            line.truncate(width, overflow="crop")  # a wrapped line would break the count of lines to redraw
            yield line

    def _frame(self, width: int, tall: bool, ascii_only: bool) -> list[Text]:
        """The live area: progress, the five stages, the newest numbers, the reward so far."""
        frame = [self._progress_line(width, ascii_only)]
        if self._step is not None:
            frame += [self._stage_row(name, width, ascii_only) for name in STAGES]
        if not self._quantities:
            return frame
        dash = "-" if ascii_only else "\u2500"
        title = Text(f"{dash} after step {self._measured_step} ", "dim")
        if self._skipped:
            title.append(f"updates skipped: {self._skipped} ", "bold yellow")
        frame.append(title.append(dash * max(0, width - title.cell_len), "dim"))
        frame += self._quantity_rows(width)
        if self._components:
            row = Text("components", "dim")
            for name, mean in self._components.items():
                row.append(f"  {printable(name)} ", "dim").append(number(mean), "bold")
            row.truncate(width, overflow="crop" if ascii_only else "ellipsis")
            frame.append(row)
        if tall:  # a short window keeps the numbers and loses the plot
            rewards, first = list(self._rewards), self._steps_before + 1
            frame += [Text(line, "cyan") for line in plot(rewards, width, 3, first=first, ascii_only=ascii_only)]
        return frame

    def _progress_line(self, width: int, ascii_only: bool) -> Text:
        done, now = self._steps_before + self._finished, self._clock()
        if self._active is None and self._activity:
            left = f"{self._activity} "
        else:
            left = f"step {done if self._step is None else self._step}/{self._steps} "
        right = f" {human_seconds(now - self._started)}  ETA {human_seconds(self._eta(now))}"
        bar = max(0, width - len(left) - len(right))
        filled = bar * done // self._steps
        full, empty = ("#", ".") if ascii_only else ("\u2501", "\u2500")
        return Text.assemble((left, "bold"), (full * filled, "green"), (empty * (bar - filled), "dim"), right)

    def _stage_row(self, name: str, width: int, ascii_only: bool) -> Text:
        stage = self._stages.get(name)
        done_mark, active_mark = ("*", ">") if ascii_only else ("\u2713", "\u25b8")
        detail = seconds = memory = ""
        if name == self._active:
            mark, style = (active_mark, "bold cyan"), "bold"
            detail, seconds = self._activity, human_seconds(self._clock() - self._since)
        else:
            # a stage still to come keeps, dimmed, what the step before had: nothing jumps when steps are fast
            ended = stage is not None and stage.step == self._step
            mark, style = ((done_mark, "green"), "") if ended else ((" ", ""), "dim")
            if stage is not None:
                detail, seconds, memory = stage.detail, human_seconds(stage.seconds), human_bytes(stage.memory)
        row = Text.assemble(mark, (f" {STAGES.index(name) + 1} {name:<9} {detail}", style))
        right = f" {seconds:>6} {memory:>7}"
        row.truncate(max(0, width - len(right)), overflow="crop" if ascii_only else "ellipsis", pad=True)
        return row.append(right, style)

    def _quantity_rows(self, width: int) -> list[Text]:
        """Three rows of three, each column as wide as it needs to be; what a wide area has left over is spread."""
        cells = [
            Text.assemble((value, "bold"), (f" {label}", "dim"))
            if label == "tok/s"
            else Text.assemble((f"{label} ", "dim"), (value, "bold"))
            for label, value in self._quantities.items()
        ]
        columns = [max(cell.cell_len for cell in cells[column::3]) for column in range(3)]
        gap = min(8, max(2, (width - sum(columns)) // 2))
        for position, cell in enumerate(cells):
            if position % 3 < 2:
                cell.pad_right(columns[position % 3] - cell.cell_len + gap)
        return [Text().join(cells[start : start + 3]) for start in range(0, len(cells), 3)]

    def _print_step(self, metrics: Row) -> None:
        """A line with the numbers of a step; the first step has its five stages above it."""
        if self._finished == 1:
            for name in REPEATED:
                if name in self._stages and self._stages[name].step == self._step:
                    self._print(self._stage_line(name))
        is_last = self._steps_before + self._finished >= self._steps
        if self._finished == 1 or is_last or self._finished % self._every == 0:
            self._print(step_line(self._measured_step, self._steps, metrics, self._eta(self._clock())))

    def _stage_line(self, name: str) -> str:
        stage = self._stages[name]
        cost = f"{human_seconds(stage.seconds):>6}  {human_bytes(stage.memory):>7}"
        return f"  {STAGES.index(name) + 1} {name:<9}  {cost}  {stage.detail}".rstrip()

    def _eta(self, now: float) -> float | None:
        """Seconds to the end at the pace of the newest steps, saves and evaluations between them included."""
        remaining = self._steps - self._steps_before - self._finished
        if len(self._finishes) < 2 or remaining == 0:
            return None
        newest = self._finishes[-1]
        pace = (newest - self._finishes[0]) / (len(self._finishes) - 1)
        return max(pace * (remaining - 1), pace * remaining - (now - newest))

    def _stop(self, keep: bool) -> None:
        """Gives the terminal back, with the last state of the live area on it or without."""
        if self._live is not None:
            self._live.transient = not keep
            self._live.stop()
            self._live = None

    def _print(self, line: str | Text) -> None:
        self._spoke = self._clock()
        self.console.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)

"""Copies for other tools: rows of metrics.jsonl and evaluations.jsonl, and tables of completions -> TensorBoard, W&B,
trackio.

The record is the run directory; a sink is a convenience. A sink that fails is reported once and removed, and the run
goes on. No sink moves a global random state, which would change the training. A missing package is refused before the
run begins.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from assay.config import ConfigError
from assay.config.sections import LogConfig
from assay.machine import durable
from assay.train.randomness import unmoved_generators
from assay.train.show.completions import CompletionTable, cells_of, markdown_of

_PACKAGES = ("tensorboard", "wandb", "trackio")  # each is a setting of [log], a package, and an extra of Assay
_TABLE = "train/completions"  # what the tables of completions are called
_ID_FILE = "log-id.json"  # what the run is called at W&B and trackio, so that a resumed run goes on there


class Sink(Protocol):
    name: str

    def write(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def write_table(self, table: CompletionTable) -> None: ...
    def close(self) -> None: ...


def numbers_of(row: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The finite numbers of a row, by name; what is nested gets a slash. The step is not one of them.

    >>> numbers_of({"step": 3, "reward_mean": 0.5, "note": "x", "seconds": {"loss": 2}, "loss": None}, "train")
    {'train/reward_mean': 0.5, 'train/seconds/loss': 2.0}
    """
    numbers: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            numbers |= numbers_of(value, f"{prefix}/{key}")
        elif key != "step" and isinstance(value, int | float) and type(value) is not bool and math.isfinite(value):
            numbers[f"{prefix}/{key}"] = float(value)
    return numbers


def require_packages(config: LogConfig) -> None:
    """Refuses a sink whose package cannot be imported. Call it before anything is written or trained."""
    for name in _PACKAGES:
        setting = getattr(config, name)
        if setting:
            try:
                with unmoved_generators():
                    importlib.import_module(name)
            except ImportError as error:
                wanted = "true" if setting is True else repr(setting)
                raise ConfigError(
                    f"log.{name} = {wanted} needs the package {name}, which cannot be imported ({error}); "
                    f"pip install 'assay[{name}]'"
                ) from error


class Sinks:
    """All sinks of the config. Calls `on_failure` with one sentence per sink that fails, and removes it."""

    def __init__(self, sinks: list[Sink], on_failure: Callable[[str], None]) -> None:
        self._sinks = sinks
        self._on_failure = on_failure

    def step(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""
        self._each(lambda sink: sink.write(row["step"], numbers_of(row, "train")))

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """A row of evaluations.jsonl."""
        self._each(lambda sink: sink.write(row["step"], numbers_of(row, "heldout")))

    def completions(self, table: CompletionTable) -> None:
        self._each(lambda sink: sink.write_table(table))

    def close(self) -> None:
        self._each(lambda sink: sink.close())
        self._sinks = []

    def _each(self, act: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                with unmoved_generators():
                    act(sink)
            # the boundary to packages that may raise anything (disk, network, database) or call sys.exit: no copy of
            # the metrics is worth the run that it copies
            except (Exception, SystemExit) as error:
                self._sinks.remove(sink)
                self._on_failure(
                    f"log.{sink.name} failed and is left out from here on: {type(error).__name__}: {_reason(error)}; "
                    "metrics.jsonl has every row"
                )


def open_sinks(
    config: LogConfig,
    run_directory: Path,
    run_name: str,
    settings: Mapping[str, Any],
    *,
    after_step: int,
    on_failure: Callable[[str], None],
) -> Sinks:
    """The sinks of the [log] section. `after_step` is the last step of the record, -1 for a new run: what a sink has of
    later steps is to be written again. `settings` are shown beside the metrics; they hold no secret."""
    require_packages(config)
    sinks: list[Sink] = []
    with unmoved_generators():
        if config.tensorboard:
            sinks.append(TensorBoard(run_directory / "tensorboard", after_step))
        if config.wandb:
            sinks.append(WeightsAndBiases(config.wandb, run_directory, run_name, settings))
        if config.trackio:
            sinks.append(Trackio(config.trackio, run_directory, run_name, settings))
    return Sinks(sinks, on_failure)


class TensorBoard:
    """Event files, written record by record: no thread, and no host name in a file's name."""

    name = "tensorboard"

    def __init__(self, directory: Path, after_step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        try:
            directory.mkdir(exist_ok=True)
            # read in the order of their names; "tfevents" is what marks the file
            number = len(list(directory.iterdir()))
            self._file = (directory / f"events.out.tfevents.{int(time.time()):010d}.{number:04d}").open("xb")
        except OSError as error:
            raise ConfigError(f"log.tensorboard: {directory} cannot be written: {durable.reason(error)}") from error
        self._records = RecordWriter(self._file)
        self._add(self._event(file_version="brain.Event:2"))
        # a start at this step makes readers forget what earlier files have of it and of later ones
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(self._event(step=after_step + 1, session_log=start))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._add(self._event(step=step, summary=self._summary(value=values)))

    def write_table(self, table: CompletionTable) -> None:
        from tensorboard.compat.proto import tensor_pb2, types_pb2
        from tensorboard.plugins.text.metadata import create_summary_metadata

        text = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[markdown_of(table).encode()])
        value = self._summary.Value(tag=_TABLE, tensor=text, metadata=create_summary_metadata(_TABLE, ""))
        self._add(self._event(step=table.step, summary=self._summary(value=[value])))

    def close(self) -> None:
        self._records.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()


class _Logged:
    """What W&B and trackio have in common: runs with `log`, and tables."""

    _run: Any
    _table: Any

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def write_table(self, table: CompletionTable) -> None:
        columns, rows = cells_of(table)
        self._run.log({_TABLE: self._table(columns=columns, data=rows)}, step=table.step)


class WeightsAndBiases(_Logged):
    """A W&B run. It gets the numbers, the settings and the tables of completions, and nothing else;
    WANDB_MODE=offline keeps them on this machine.

    W&B ignores a step that is written again after a resume: it has the same numbers."""

    name = "wandb"

    def __init__(self, project: str, run_directory: Path, run_name: str, settings: Mapping[str, Any]) -> None:
        import wandb

        self._table = wandb.Table
        nothing_else = wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            save_code=False,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
            host="",  # it would be looked up if it were not given
        )
        try:
            self._run = wandb.init(
                project=project,
                name=run_name,
                id=_lasting_id(run_directory),
                resume="allow",
                dir=str(run_directory),
                config=dict(settings),
                settings=nothing_else,
            )
        except (wandb.Error, OSError, ValueError) as error:
            raise ConfigError(
                f"log.wandb = {project!r} cannot be opened: {_reason(error)}; log in with 'wandb login', or set "
                "WANDB_MODE=offline"
            ) from error

    def close(self) -> None:
        self._run.finish()


class Trackio(_Logged):
    """A trackio run, in a local database unless TRACKIO_DIR or TRACKIO_SPACE_ID name another.

    A step that is written again after a resume appears twice there, with the same numbers."""

    name = "trackio"

    def __init__(self, project: str, run_directory: Path, run_name: str, settings: Mapping[str, Any]) -> None:
        import trackio

        self._table = trackio.Table
        self._finish: Callable[[], None] = trackio.finish  # the run's own finish would run, and print, again at exit
        try:
            with _no_chatter():
                self._run = trackio.init(
                    project=project,
                    # runs are told apart by name alone, and two run directories may share theirs
                    name=f"{run_name}-{_lasting_id(run_directory)}",
                    resume="allow",
                    config=dict(settings),
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"log.trackio = {project!r} cannot be opened: {_reason(error)}; choose another project name, or check "
                "TRACKIO_DIR and TRACKIO_SPACE_ID"
            ) from error

    def close(self) -> None:
        with _no_chatter():
            self._finish()


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _lasting_id(run_directory: Path) -> str:
    """The id of the run at W&B and trackio: made once, kept in the run directory."""
    file = run_directory / _ID_FILE
    try:
        if not file.exists():
            durable.replace_file(file, json.dumps({"id": uuid.uuid4().hex[:12]}).encode() + b"\n")
        return str(json.loads(file.read_bytes())["id"])
    except OSError as error:
        raise ConfigError(f"{file} cannot be written or read: {durable.reason(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is damaged; remove it, and the run is logged under a new name") from error


@contextlib.contextmanager
def _no_chatter() -> Iterator[None]:
    """Keeps what a package prints off stdout, which belongs to the command's own output."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield

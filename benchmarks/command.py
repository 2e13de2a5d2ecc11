"""What the commands of benchmarks/ share: help that ends with examples, refusals in one sentence, JSON files."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from assay.config import ConfigError
from assay.machine import durable
from assay.machine.terminal import printable


class Parser(argparse.ArgumentParser):
    """The options of `python -m benchmarks.NAME`."""

    def __init__(self, name: str, description: str, examples: Sequence[str]) -> None:
        self.examples = tuple(f"python -m benchmarks.{name} {words}".strip() for words in examples)
        super().__init__(
            prog=f"python -m benchmarks.{name}",
            description=description,
            epilog="\n  ".join(["examples:", *self.examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def number(self, option: str, default: int | None, meaning: str) -> None:
        """An option that is a whole number from 1 on."""
        shown = "" if default is None else f"; by default {default}"
        self.add_argument(option, type=_from_one, default=default, metavar="N", help=meaning + shown)

    def file(self, option: str, metavar: str, meaning: str) -> None:
        self.add_argument(option, type=Path, metavar=metavar, help=meaning)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help shows the options\n")


def _from_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def exit_with(measure: Callable[[], int]) -> NoReturn:
    """Ends the process with the code that `measure` returns, or with 2 and a sentence about bad input."""
    try:
        code = measure()
    except ConfigError as error:
        for sentence in error.sentences:
            print(f"assay: {printable(sentence)}", file=sys.stderr)
        code = 2
    sys.exit(code)


def alternating(names: Sequence[str], repeats: int) -> list[str]:
    """Every second repeat starts with the last one, so that nobody always runs first.

    >>> alternating(["assay", "trl"], 2)
    ['assay', 'trl', 'trl', 'assay']
    """
    return [name for repeat in range(repeats) for name in (names if repeat % 2 == 0 else names[::-1])]


def from_json(kind: Any, values: Any) -> Any:
    """What `asdict` and JSON made of a dataclass, as that dataclass again.

    >>> from_json(tuple[int, ...], [1, 2]), from_json(int | None, None)
    ((1, 2), None)
    """
    if is_dataclass(kind):
        make: Any = kind
        types = get_type_hints(kind)
        return make(**{name: from_json(types[name], value) for name, value in values.items()})
    if get_origin(kind) is tuple:
        return tuple(from_json(get_args(kind)[0], value) for value in values)
    if get_origin(kind) is UnionType:
        return None if values is None else from_json(get_args(kind)[0], values)
    return values


def read_json(kind: Any, path: Path) -> Any:
    return from_json(kind, json.loads(path.read_text(encoding="utf-8")))


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def check_directories(*paths: Path | None) -> None:
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: its directory does not exist; make it, or choose another path")


def write_json(path: Path | None, document: Mapping[str, Any]) -> None:
    if path is None:
        return
    try:
        durable.replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{path} could not be written: {durable.reason(error)}") from error

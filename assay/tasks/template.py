"""A prompt with named gaps: "{question} Answer briefly." Braces in the data are data; only the template has gaps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from assay.config import ConfigError, nearest

_GAP = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True)
class Template:
    """
    >>> Template("{{a}} {b}").fill({"b": "{c}"}), Template("{b}?").names
    ('{a} {c}', ('b',))
    """

    text: str

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(match[1] for match in _GAP.finditer(self.text) if match[1] is not None)

    @cached_property
    def only_name(self) -> str:
        """The field that is the whole template, "" if there is more to it."""
        names = self.names
        return names[0] if names and self.text == f"{{{names[0]}}}" else ""

    def check(self, columns: Sequence[str], source: str) -> None:
        if not self.names:
            raise ConfigError(
                f"task.options.prompt = {self.text!r} names no field, so that all prompts would be the same; "
                f"the fields of {source} are {', '.join(columns)}"
            )
        for name in self.names:
            if name not in columns:
                close = nearest(name, columns) or f"; the fields are {', '.join(columns)}"
                raise ConfigError(
                    f"task.options.prompt names {{{name}}}, but {source} has no field {name!r}{close} "
                    "(a brace that is meant as one is written twice)"
                )

    def fill(self, values: Mapping[str, str]) -> str:
        return _GAP.sub(lambda match: match[0][0] if match[1] is None else values[match[1]], self.text)

"""Python text --> the same text with long literal containers cut short, so that parsing them costs little.

`[1, 2, ... 2,000,000 numbers]` becomes `[1, 2, ..., 16, *...,        2000000]`: the first items and the last one stay,
`*...` (in a dictionary `**...`) stands for the others, and blanks keep every other line and column where it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import NamedTuple

KEPT = 16  # first items of a container that is cut short

# Every quantifier is possessive, and what was matched is not looked at again: the time is linear in the text.
# A string that is not closed ends with its line or the text; Python does not read such a text anyway.
_TRIPLE = r"'''(?:[^'\\]|\\.|'(?!''))*+(?:''')?+|\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*+(?:\"\"\")?+"
_QUOTED = r"'(?:[^'\\\n]|\\.)*+'?+|\"(?:[^\"\\\n]|\\.)*+\"?+"
_COMMENT = r"#[^\n]*+"
_SPACE = rf"(?:[ \t\n]|{_COMMENT}\n)*+"
_NUMBER = r"[-+]?+\.?+[0-9](?:[0-9a-zA-Z_.]|(?<=[eE])[-+])*+"
_CONSTANT = r"(?:True|False|None)\b"
_ATOM = rf"(?>{_NUMBER}|(?:[a-zA-Z]{{0,2}}+(?:{_TRIPLE}|{_QUOTED}){_SPACE})++|{_CONSTANT})"
_OTHER = rf"(?:(?!{_CONSTANT})[^\W\d]\w*+(?!['\"])|[^\w\s'\"#\[\](){{}},:]|\s)++|."
_DEPTH_AT_ONCE = 2  # of containers that are matched as one token
# a lexeme costs about one node of the syntax tree, whatever its length
_LEXEME = re.compile(rf"\s*+(?:{_TRIPLE}|{_QUOTED}|{_COMMENT}|\w++|[^\w\s])", re.DOTALL)


class _Cut(NamedTuple):
    start: int
    end: int
    is_keyed: bool


class _Patterns(NamedTuple):
    token: re.Pattern[str]
    item: re.Pattern[str]  # with its comma
    key: re.Pattern[str]  # with its colon


def shorten(text: str, most: int) -> str:
    """Containers of literals with more than `most` items keep the first of them and the last."""
    if text.count(",") <= most:
        return text
    parts: list[str] = []
    end = 0
    for cut in _Reading(text, most).cuts:
        mark = "**...," if cut.is_keyed else "*...,"
        parts += [text[end : cut.start], mark, _blanks(text, cut, len(mark))]
        end = cut.end
    return "".join([*parts, text[end:]])


def count_lexemes(text: str) -> int:
    """How many words, signs, strings and comments the text is made of.

    >>> count_lexemes("x = 'a long string'  # and a comment")
    4
    """
    return _LEXEME.subn("", text.rstrip())[1]


def _blanks(text: str, cut: _Cut, taken: int) -> str:
    lines = text.count("\n", cut.start, cut.end)
    if not lines:
        return " " * (cut.end - cut.start - taken)
    return "\n" * lines + " " * (cut.end - text.rindex("\n", cut.start, cut.end) - 1)


@dataclass(slots=True)
class _Container:
    """An open bracket, and the last row of literals in it: items that follow one another."""

    start: int  # of the row
    end: int  # of the row, behind its last comma
    kept: int = 0  # the end of the items of the row that stay
    count: int = 0  # items of the row
    item: str = ""  # what stands behind the last comma: nothing, a "literal", a "key" with its colon, or "other"
    is_literal: bool = True  # nothing else was in it


class _Reading:
    """One pass through a text. `cuts` are in order, and none is within another."""

    def __init__(self, text: str, most: int) -> None:
        self.cuts: list[_Cut] = []
        self._text, self._most, self._patterns = text, most, _patterns(most)
        self._open = [_Container(0, 0)]
        steps: dict[str, Callable[[re.Match[str]], None]] = {
            "items": self._items,
            "literal": self._literal,
            "start": self._start,
            "stop": self._stop,
            "comma": lambda token: self._end_item(token.end()),
            "colon": self._colon,
            "other": self._other,
        }
        for token in self._patterns.token.finditer(text):
            if token.lastgroup is not None:
                steps[token.lastgroup](token)
        for container in self._open[::-1]:
            self._end_row(container)

    def _items(self, token: re.Match[str]) -> None:
        container = self._open[-1]
        container.item = "literal" if container.item in ("", "key") else "other"  # the first may have begun before
        for item in islice(self._patterns.item.finditer(self._text, *token.span()), self._most + 1):
            self._end_item(item.end())
            container.item = "literal"
        container.end = token.end()
        container.item = ""

    def _literal(self, _: re.Match[str] | None = None) -> None:
        container = self._open[-1]
        container.item = "literal" if container.item in ("", "key") else "other"

    def _start(self, token: re.Match[str]) -> None:
        self._open.append(_Container(token.end(), token.end()))

    def _stop(self, token: re.Match[str]) -> None:
        if len(self._open) == 1:
            return  # not Python
        container = self._open.pop()
        self._end_row(container)
        if container.is_literal and container.item in ("", "literal"):
            self._literal()
        else:
            self._other()

    def _colon(self, _: re.Match[str]) -> None:
        container = self._open[-1]
        container.item = "key" if container.item == "literal" else "other"

    def _other(self, _: re.Match[str] | None = None) -> None:
        self._open[-1].item = "other"

    def _end_item(self, end: int) -> None:
        container = self._open[-1]
        if container.item == "literal":
            container.count += 1
            container.end = end
            if container.count == KEPT:
                container.kept = end
        else:
            self._end_row(container)
            container.start, container.end, container.count, container.is_literal = end, end, 0, False
        container.item = ""

    def _end_row(self, container: _Container) -> None:
        if container.count <= self._most:
            return
        while self.cuts and self.cuts[-1].start >= container.kept:
            self.cuts.pop()  # within what is cut out now
        is_keyed = self._patterns.key.match(self._text, container.start) is not None
        self.cuts.append(_Cut(container.kept, container.end, is_keyed))


@cache
def _patterns(most: int) -> _Patterns:
    literal = _ATOM  # or a container in which nothing is to be cut
    for _ in range(_DEPTH_AT_ONCE):
        inner = rf"{literal}{_SPACE}(?::{_SPACE}{literal}{_SPACE})?+,?+{_SPACE}"
        literal = rf"(?>{_ATOM}|[\[({{]{_SPACE}(?:{inner}){{0,{most}}}+[\])}}])"
    item = rf"{literal}{_SPACE}(?::{_SPACE}{literal}{_SPACE})?+,{_SPACE}"
    kinds = {
        "items": rf"(?:{item})++",
        "literal": literal,
        "start": rf"[\[({{]{_SPACE}",
        "stop": r"[\])}]",
        "comma": rf",{_SPACE}",
        "colon": ":",
        "other": _OTHER,
    }
    token = "|".join(rf"(?P<{name}>{pattern})" for name, pattern in kinds.items())
    compiled = [
        re.compile(pattern, re.DOTALL) for pattern in (rf"[ \t\n]++|{_COMMENT}|{token}", item, rf"{literal}{_SPACE}:")
    ]
    return _Patterns(*compiled)

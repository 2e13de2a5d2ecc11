"""Python text --> the same text with long literal containers cut short, so that parsing them costs little.

`[1, 2, ... 2,000,000 numbers]` becomes `[1, 2, ..., 16, *...,        2000000]`: the first items and the last one stay,
`*...` (in a dictionary `**...`) stands for the others, and blanks keep every other line and column where it was.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import islice

KEPT = 16  # first items of a container that is cut short
_DEEPEST = 3  # containers within containers

# Every quantifier is possessive: a text that does not match is looked at once for each depth, never again and again.
_QUOTED = r"'[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'|\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*+\""
_SPACE = r"(?:[ \t\n]|#[^\n'\"]*+\n|\0[0-9:]++\0)*+"
_NUMBER = r"[-+]?+[0-9.](?:[0-9a-zA-Z_.]|(?<=[eE])[-+])*+"
_ATOM = rf"(?>{_NUMBER}|(?:[a-zA-Z]{{0,2}}(?:{_QUOTED}){_SPACE})++|True|False|None|\*\*?\.\.\.)"
_BLANK = re.compile(r"\0([0-9]+):([0-9]+)\0")  # lines and columns that were cut out; the text itself holds no \0
# a lexeme costs about one node of the syntax tree, whatever its length
_LEXEME = re.compile(
    r"\s*+(?:'''(?:[^'\\]|\\.|'(?!''))*+(?:''')?|\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*+(?:\"\"\")?"
    r"|'(?:[^'\\\n]|\\.)*+'?|\"(?:[^\"\\\n]|\\.)*+\"?|#[^\n]*+|\w++|[^\w\s])",
    re.DOTALL,
)


def shorten(text: str, most: int) -> str:
    """Containers of literals with more than `most` items keep the first of them and the last."""
    if text.count(",") <= most or "\0" in text:
        return text
    for depth in range(_DEEPEST + 1):  # what stands inside first
        if depth and sum(map(text.count, ("],", "),", "},"))) <= most:
            break
        text = _run_of_items(depth).sub(lambda run, depth=depth: _cut(run, depth, most), text)  # type: ignore[misc]
    return _filled(text)


def count_lexemes(text: str) -> int:
    """How many words, signs, strings and comments the text is made of.

    >>> count_lexemes("x = 'a long string'  # and a comment")
    4
    """
    return _LEXEME.subn("", text.rstrip())[1]


def _cut(run: re.Match[str], depth: int, most: int) -> str:
    text = run[0]
    if len(text) < 2 * most:
        return text
    ends = [item.end() for item in islice(_item_and_comma(depth).finditer(text), most + 1)]
    line = run.string.rfind("\n", 0, run.start()) + 1
    if len(ends) <= most or "#" in run.string[line : run.start()]:  # the mark must not land in a comment
        return text
    head, rest = text[: ends[KEPT - 1]], _filled(text[ends[KEPT - 1] :])
    mark = "**...," if run[1] else "*...,"
    lines = rest.count("\n")
    columns = len(rest) - rest.rindex("\n") - 1 if lines else len(rest) - len(mark)
    return f"{head}{mark}\0{lines}:{columns}\0"


def _filled(text: str) -> str:
    return _BLANK.sub(lambda blank: "\n" * int(blank[1]) + " " * int(blank[2]), text)


@cache
def _run_of_items(depth: int) -> re.Pattern[str]:
    """Items with their commas, one behind the other; group 1 is the key of the first, in a dictionary."""
    item = _item(depth)
    entry = rf"{_ATOM}{_SPACE}:{_SPACE}{item}{_SPACE},{_SPACE}"
    return re.compile(rf"(?=({_ATOM}{_SPACE}:))(?:{entry})++|(?:{item}{_SPACE},{_SPACE})++")


@cache
def _item_and_comma(depth: int) -> re.Pattern[str]:
    return re.compile(rf"(?:{_ATOM}{_SPACE}:{_SPACE})?+{_item(depth)}{_SPACE},{_SPACE}")


def _item(depth: int) -> str:
    """An atom, or a container of such, at most `depth` deep."""
    if depth == 0:
        return _ATOM
    inner = rf"(?:{_ATOM}{_SPACE}:{_SPACE})?+{_item(depth - 1)}{_SPACE},?+{_SPACE}"
    return rf"(?>{_ATOM}|[\[({{]{_SPACE}(?:{inner})*+[\])}}])"

"""Python 3.12 lets an f-string hold its own quotes; before it, such a file does not parse. In the copy it is rewritten.

Lines stay where they are: `f"{row["name"]}"` becomes a text in triple quotes, which older versions read the same way.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings

_START = re.compile(r"""(?i)\b(?:f|rf|fr)(?='|")|\b(?:r|b|u|br|rb)(?='|")|(?='|")|#[^\n]*""")


def parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return False
    return True


def as_older_python(text: str) -> str:
    """The text itself if this Python reads it, or if rewriting does not help."""
    if sys.version_info >= (3, 12) or parses(text):
        return text
    rewritten = _rewritten(text)
    return rewritten if parses(rewritten) else text


def _rewritten(text: str) -> str:
    parts: list[str] = []
    at = 0
    while (found := _START.search(text, at)) is not None:
        if found.group().startswith("#"):
            parts.append(text[at : found.end()])
            at = found.end()
            continue
        quote = _quote(text, found.end())
        is_format = "f" in found.group().lower()
        end, nests = _end(text, found.end() + len(quote), quote, is_format=is_format)
        body = text[found.end() + len(quote) : end - len(quote)]
        parts.append(text[at : found.end()])
        if nests and len(quote) == 1 and '"""' not in body and not body.endswith('"'):
            parts.append(f'"""{body}"""')
        elif nests and len(quote) == 1 and "'''" not in body and not body.endswith("'"):
            parts.append(f"'''{body}'''")
        else:
            parts.append(text[found.end() : end])
        at = end
    return "".join([*parts, text[at:]])


def _quote(text: str, at: int) -> str:
    return text[at : at + 3] if text[at : at + 3] in ('"""', "'''") else text[at]


def _end(text: str, at: int, quote: str, *, is_format: bool) -> tuple[int, bool]:
    """(behind the closing quote, whether an expression inside holds the same quote)."""
    depth, nests = 0, False
    while at < len(text):
        letter = text[at]
        if depth == 0 and text.startswith(quote, at):
            return at + len(quote), nests
        is_doubled = is_format and text[at : at + 2] in ("{{", "}}")
        if depth == 0 and (letter == "\\" or is_doubled):
            at += 2
        elif is_format and letter in "{[(":
            depth += letter == "{" or depth > 0
            at += 1
        elif is_format and letter in "}])":
            depth -= depth > 0
            at += 1
        elif depth > 0 and letter in "\"'":
            inner = _quote(text, at)
            nests = nests or inner[0] == quote[0]
            at, _ = _end(text, at + len(inner), inner, is_format=text[at - 1] in "fF")
        elif letter == "\n" and len(quote) == 1 and depth == 0:
            return at, False  # not a text after all
        else:
            at += 1
    return at, nests

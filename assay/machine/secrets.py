"""Secrets of the environment: an error message may quote one, and must not carry it into a record.

A server or a library may quote a secret in another spelling than its own. So each is looked for as it is, in base64
(alone or inside a longer text), in hexadecimal, percent-encoded, escaped as in JSON, Python or HTML, reversed, and each
of these broken over lines.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

# the endings under which services keep credentials in the environment: OPENAI_API_KEY, HF_TOKEN, DB_PASSWORD
_SECRET_NAME = re.compile(r"(KEY|KEY_ID|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_SECRET = 8  # characters; a shorter value ("1", "true") is not a secret and would blank innocent words
_BASE64 = "[A-Za-z0-9+/_-]?"  # the character at each end of a secret in base64 belongs to its neighbour too
_IN_BASE64 = {"+": r"(?:\+|%2[Bb])", "/": r"(?:\\?/|%2[Ff])"}  # as it is, in a URL, in JSON
_LINE_BREAK = r"(?>[ \t]*+(?:\r?\n|(?:\\r)?\\n)[ \t]*+)?"  # or none; an escaped one counts too
_BREAKS = r"(?>(?:\s|\\[nr])*)"


def secrets(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that look like credentials -> their values, longest first: one may contain another."""
    found = {name: environment[name].strip() for name in environment if _is_secret(name)}
    long = ((name, value) for name, value in found.items() if len(value) >= _SHORTEST_SECRET)
    return dict(sorted(long, key=lambda item: -len(item[1])))


@functools.lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def without_secrets(text: str) -> str:
    """The text with each secret of the environment, in whatever spelling, replaced by the variable's name."""
    return redact(text, secrets()) if text else text  # most texts are empty, and reading the environment is slow


def redact(text: str, values: Mapping[str, str]) -> str:
    """The text with each of these values, in whatever spelling, replaced by its name.

    >>> redact("Bearer c2VjcmV0IGtleQ== is refused", {"API_KEY": "secret key"})
    'Bearer [value of API_KEY] is refused'
    """
    joined = compact = ""  # without line breaks; without white space and escapes: is there anything to look for?
    for name, value in values.items():
        spellings = _spellings(value)
        mark = f"[value of {name}]"
        joined = joined or "".join(line.strip() for line in text.replace("\\r", "").replace("\\n", "\n").splitlines())
        compact = compact or _compact(joined)
        for literal in spellings.literals:
            if literal in text:
                text = text.replace(literal, mark)
            if len(literal) >= _SHORTEST_SECRET and literal in joined:
                text = re.sub(_LINE_BREAK.join(map(re.escape, literal)), mark, text)
        for part, pattern in spellings.in_base64:
            if part in compact:
                text = pattern.sub(mark, text)
    return text


def _compact(text: str) -> str:
    for old, new in (("\\/", "/"), ("%2F", "/"), ("%2f", "/"), ("%2B", "+"), ("%2b", "+")):
        text = text.replace(old, new)
    return "".join(text.split())


@dataclass(frozen=True, slots=True)
class _Spellings:
    """How one secret may be written."""

    literals: tuple[str, ...]  # longest first: one may contain another
    in_base64: tuple[tuple[str, re.Pattern[str]], ...]  # what depends on the secret alone; with line breaks in it


@functools.lru_cache(maxsize=256)
def _spellings(value: str) -> _Spellings:
    if len(value) < _SHORTEST_SECRET:
        return _Spellings((value,), ())
    data = value.encode("utf-8", "surrogateescape")
    every_byte = "".join(f"%{byte:02X}" for byte in data)
    percent_encoded = (quote(data), quote(data, safe=""), quote_plus(data), every_byte)
    escaped = json.dumps(value)[1:-1]
    literals = {
        value,
        value[::-1],
        data.hex(),
        data.hex().upper(),
        data.hex(":"),
        data.hex(" "),
        *percent_encoded,
        *(re.sub("%..", lambda code: code[0].lower(), text) for text in percent_encoded),
        escaped,
        escaped.replace("/", "\\/"),
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        repr(data)[2:-1],
        html.escape(value),
    }
    parts = {part for before in range(3) for part in _base64_parts(data, before)}
    return _Spellings(
        tuple(sorted(literals, key=lambda text: (-len(text), text))),
        tuple((part, _base64_pattern(part)) for part in parts),
    )


def _base64_pattern(part: str) -> re.Pattern[str]:
    letters = _BREAKS.join(_IN_BASE64.get(letter, letter) for letter in part)
    return re.compile(f"{_BASE64}{letters}{_BASE64}(?:=|%3[Dd]){{0,2}}")


def _base64_parts(data: bytes, before: int) -> tuple[str, str]:
    """The characters that depend on the data alone when `before` bytes stand in front of it; both alphabets."""
    encoded = base64.b64encode(bytes(before) + data).decode()
    part = encoded[-(-8 * before // 6) : 8 * (before + len(data)) // 6]
    return part, part.translate(str.maketrans("+/", "-_"))

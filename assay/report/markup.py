"""Elements of a page. Every text becomes harmless on its way into one; only Markup stays as it is.

>>> str(element("p", "a < b", class_="note"))
'<p class="note">a &lt; b</p>'
"""

from __future__ import annotations

import html
import json
import unicodedata
from typing import Any

_VOID = frozenset(("meta", "link", "input", "br", "line", "path", "rect", "circle"))
_KEPT = "\n\t"


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def readable(text: str) -> str:
    r"""The text with every character that cannot be seen, or that turns its neighbours round, as its escape.

    >>> readable("a\u202eb\x00\nc")
    'a\\u202eb\\x00\nc'
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_readable, text))


def _readable(letter: str) -> str:
    if letter in _KEPT or letter.isprintable() or unicodedata.category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape").decode("ascii")


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """`class_` is class, `data_x` is data-x; an attribute that is None or False is left out, True has no value."""
    shown = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    inner = join(*children)
    return Markup(f"<{name}{shown}/>" if name in _VOID and not inner else f"<{name}{shown}>{inner}</{name}>")


def join(*children: object) -> Markup:
    """Several parts in a row; None is nothing, and a list or a tuple is its parts."""
    return Markup("".join(_part(child) for child in children))


def _part(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return str(child)
    if isinstance(child, (list, tuple)):
        return str(join(*child))
    return html.escape(readable(str(child)))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(readable(str(value)))}"'


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: no character in it can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

"""Everything that reaches a terminal: foreign text made safe, numbers as a person reads them, a line of progress.

Model output and user text may hold escape sequences, and rich hands them to the terminal as they are. So all foreign
text passes through one of these first:

    printable, short      drop what cannot be seen; for sentences
    escape, fit, quote    show what cannot be seen; for completions, names and the doctor's reports
"""

from __future__ import annotations

import math
import re
import sys
import time
import unicodedata
from collections.abc import Callable

from rich.cells import cell_len

# what a CI runner takes for a command: "::" at the start of a line, and "##[", "##vso[" anywhere in one
_COMMAND = re.compile(r"(?:^|(?<=\s)):(?=:)|#(?=#\w*\[)")
_LONGEST_QUOTE = 60
LIVE_SECONDS, LOG_SECONDS = 0.1, 10.0  # between two lines of progress on a terminal and in a log
WIDEST_PROGRESS = 100  # cells; a line that wraps cannot be written over
LONGEST_TEXT = 400  # characters of one foreign text in a sentence: a megabyte of model output is not an event


def printable(text: str) -> str:
    """One line without control, bidirectional and other invisible characters and without commands to a CI runner;
    line breaks and tabs become spaces.

    >>> printable("a\\x1b[2Jb\\nc")
    'a[2Jb c'
    """
    spaced = (" " if character in "\n\r\t\u2028\u2029" else character for character in text)
    kept = (character for character in spaced if unicodedata.category(character) not in ("Cc", "Cf", "Cs"))
    return without_commands("".join(kept))


def short(text: str) -> str:
    """A foreign text inside a sentence."""
    return printable(text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}...")


def escape(text: str, *, arrows: bool = False, ascii_only: bool = False) -> str:
    r"""One line in which every character can be seen and nothing can act on a terminal or a CI runner: what cannot be
    seen becomes its escape. With `arrows` a line break is an arrow, unless only ASCII may be shown.

    >>> escape("a\nb\x1b[2J"), escape("::stop-commands::x ##vso[task] x[::2]")
    ('a\\nb\\x1b[2J', '\\x3a:stop-commands::x \\x23#vso[task] x[::2]')
    """
    if arrows:
        text = text.replace("\r\n", "\n")
    if arrows and not ascii_only:
        text = re.sub("[\n\r\u2028\u2029]", "\u21b5", text)
    return without_commands("".join(_visible(letter, arrows, ascii_only) for letter in text))


def _visible(letter: str, spaces: bool, ascii_only: bool) -> str:
    """`spaces`: wide and narrow spaces stay as they are, as in a text that is read."""
    can_be_seen = letter.isprintable() or (spaces and unicodedata.category(letter) == "Zs")
    if can_be_seen and (letter.isascii() or not ascii_only):
        return letter
    return letter.encode("unicode_escape").decode("ascii")


def fit(text: str, cells: int, *, ascii_only: bool = False) -> str:
    """The escaped text in at most `cells` terminal cells. What is too long loses its middle: a prompt asks at its end,
    and an answer ends with the result.

    >>> fit("What is the sum of 12 and 30?", 16, ascii_only=True)
    'What...2 and 30?'
    """
    near = 2 * cells  # characters that can be shown at either end; a character may be an escape, or have no width
    is_long = len(text) > 2 * near
    head = escape(text[:near] if is_long else text, arrows=True, ascii_only=ascii_only)
    tail = escape(text[-near:], arrows=True, ascii_only=ascii_only) if is_long else head
    if not is_long and cell_len(head) <= cells:
        return head
    mark = "..." if ascii_only else "\u2026"
    room = max(0, cells - len(mark))
    return f"{_first_cells(head, room // 3).rstrip()}{mark}{_last_cells(tail, room - room // 3).lstrip()}"[:near]


def _first_cells(text: str, cells: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += cell_len(character)
        if used > cells:
            return text[:index]
    return text


def _last_cells(text: str, cells: int) -> str:
    return _first_cells(text[::-1], cells)[::-1]


def quote(text: str) -> str:
    r"""A text of unknown origin, quoted, short, and with every character that is not printable escaped.

    >>> quote("a\x1b[2J"), quote("x" * 70)[-6:]
    ("'a\\x1b[2J'", "xxx'..")
    """
    return repr(text) if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 2]!r}.."


def without_commands(text: str) -> str:
    """The text without the workflow commands of GitHub, Azure and their like, wherever its lines are broken."""
    return _COMMAND.sub(lambda match: f"\\x{ord(match[0]):x}", text)


def json_without_commands(text: str) -> str:
    """The same JSON, in which a CI runner that prints it sees no command: no line of JSON starts with "::"."""
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text)


def number(value: float | None) -> str:
    """A number in at most seven characters, sign aside; "-" if there is none.

    >>> number(0.41236), number(-0.00041), number(123456.0), number(None)
    ('0.412', '-4.1e-4', '1.2e5', '-')
    """
    if value is None:
        return "-"
    if value == 0 or 0.001 <= abs(value) < 1000 or not math.isfinite(value):
        return f"{value:.3f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def share(value: float | None) -> str:
    """A share in percent.

    >>> share(0.125), share(None)
    ('12.5%', '-')
    """
    return "-" if value is None else f"{100 * value:.1f}%"


def human_bytes(count: int) -> str:
    """Memory in decimal units.

    >>> human_bytes(312_400_000), human_bytes(12_340_000_000)
    ('312 MB', '12.3 GB')
    """
    return f"{count / 1e6:.0f} MB" if count < 999.5e6 else f"{count / 1e9:.1f} GB"


def plural(number: int, noun: str) -> str:
    """
    >>> plural(1, "row"), plural(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def human_count(count: int) -> str:
    """A number of parameters.

    >>> human_count(84_096), human_count(134_515_008), human_count(7_615_616_512)
    ('84,096', '134.5 million', '7.6 billion')
    """
    if count < 1_000_000:
        return f"{count:,}"
    return f"{count / 1e6:.1f} million" if count < 999_950_000 else f"{count / 1e9:.1f} billion"


def human_seconds(seconds: float | None) -> str:
    """A duration in at most six characters, for anything below a hundred hours.

    >>> [human_seconds(seconds) for seconds in (0.004, 0.41, 12.34, 187, 3720, None)]
    ['4 ms', '0.41 s', '12.3 s', '3m07s', '1h02m', '-']
    """
    if seconds is None:
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class ProgressLine:
    """How far long work has come, on stderr: one line that is written over, or a line now and then in a log."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._is_shown = False
        self._shown_at = -math.inf if self._live else time.monotonic()

    def show(self, text: str, *, at_once: bool = False) -> None:
        """At most ten times per second; with `at_once` always on a terminal: what is named may take long."""
        now = time.monotonic()
        if (at_once and self._live) or now - self._shown_at >= (LIVE_SECONDS if self._live else LOG_SECONDS):
            self._shown_at, self._is_shown = now, True
            self._write(fit(text, WIDEST_PROGRESS), "" if self._live else "\n")

    def clear(self) -> None:
        if self._live and self._is_shown:
            self._write("", "")
            self._is_shown = False

    def ticker(self, what: str) -> Callable[[int, int], None]:
        """A callback for work that is counted. Its last line stays."""

        def tick(done: int, total: int) -> None:
            if done == total:
                self._write(f"{what} {done} of {total}", "\n")
            else:
                self.show(f"{what} {done} of {total}")

        return tick

    def _write(self, text: str, end: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}{end}" if self._live else f"{text}{end}")
        sys.stderr.flush()

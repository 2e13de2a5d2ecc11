"""What went wrong in a user's reward function: the reason, the place in the user's file, the way there.

In the worker an exception becomes text; in the trainer the text becomes lines for a reader and facts for a record.
Everything here may quote a completion or a secret: secrets are taken out before a text is cut, and what is shown on a
terminal is escaped.
"""

from __future__ import annotations

import functools
import site
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.config import ConfigError
from assay.machine.secrets import without_secrets
from assay.machine.terminal import escape
from assay.rewards.limits import memory_limit
from assay.types import Failure, Prompt, Rollout, Score

REASON_LENGTH = 500
_FRAME_LENGTH = 300
_FIRST_FRAMES, _LAST_FRAMES = 2, 6  # shown of a longer traceback
_MOST_CAUSES = 3
_LONGEST_TEXT = 100_000  # characters of a message that are looked at, so that secrets in it are found
_QUOTED = 300  # characters of a prompt or a completion in a block; half from the beginning, half from the end
_PRINTED_LINES = 20


class WrongUse(Exception):
    """What the function did wrong, in the words of the report."""


# ---------------------------------------------------------------- in the worker


def reason_of(error: BaseException) -> str:
    """What is recorded of an error. Secrets are taken out before it is cut: half of a key would not be recognised.

    >>> reason_of(ValueError("no digits"))
    'raised ValueError: no digits'
    """
    if isinstance(error, WrongUse):
        return without_secrets(str(error))[:REASON_LENGTH]
    return f"raised {_exception(error)}"[:REASON_LENGTH]


def describe(error: BaseException) -> dict[str, Any]:
    """A failed result: the reason and, if code of the user raised, where the error came from."""
    cause = error.__cause__ if isinstance(error, WrongUse) else error
    if cause is None:
        return {"error": reason_of(error)}
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not _is_ours(frame.filename)]
    users = [index for index, frame in enumerate(frames) if not _is_library(frame.filename)]
    frames = frames[users[0] :] if users else []
    place = f"{frames[users[-1] - users[0]].filename}:{frames[users[-1] - users[0]].lineno}" if users else ""
    if isinstance(cause, SyntaxError) and cause.filename and not users:
        place = f"{cause.filename}:{cause.lineno}"
    shown = [_frame(frame) for frame in frames]
    left_out = len(shown) - _FIRST_FRAMES - _LAST_FRAMES
    if left_out > 0:
        shown[_FIRST_FRAMES:-_LAST_FRAMES] = [f"... {left_out} more calls"]
    for other in _causes(cause):
        shown.append(f"caused by {_exception(other)[:_FRAME_LENGTH]}")
    trace = {"place": place, "exception": _exception(cause)[:REASON_LENGTH], "frames": shown}
    return {"error": reason_of(error), "trace": trace}


def place_of(function: Callable[..., object]) -> str:
    """The file and line at which a function begins; "" for one of ours and for one that is not Python."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return "" if code is None or _is_ours(code.co_filename) else f"{code.co_filename}:{code.co_firstlineno}"


def _exception(error: BaseException) -> str:
    try:
        text = str(error)[:_LONGEST_TEXT]
    except BaseException:  # a user's exception may fail at anything
        text = "(its text cannot be made)"
    limit = memory_limit() if isinstance(error, MemoryError) else ""
    return without_secrets(f"{type(error).__name__}: {text}{limit}")


def _frame(frame: traceback.FrameSummary) -> str:
    code = f": {frame.line}" if frame.line else ""
    return without_secrets(f"{frame.filename}:{frame.lineno} in {frame.name}{code}")[:_FRAME_LENGTH]


def _causes(error: BaseException) -> list[BaseException]:
    """What it was raised from, the nearest first; a chain may be a circle."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(found) <= _MOST_CAUSES and all(cause is not other for other in found):
        found.append(cause)
        cause = cause.__context__ if cause.__cause__ is None and not cause.__suppress_context__ else cause.__cause__
    return found[1:]


@functools.cache
def _is_ours(filename: str) -> bool:
    return Path(filename).is_relative_to(Path(__file__).resolve().parents[1])


@functools.cache
def _is_library(filename: str) -> bool:
    paths = sysconfig.get_paths()
    homes = [*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()]
    return filename.startswith("<") or any(Path(filename).is_relative_to(home) for home in homes)


# ---------------------------------------------------------------- in the trainer


def failure_of(result: Mapping[str, Any], place: str) -> Failure:
    """What a worker's failed result says; `place` is where the function begins, for what it returned."""
    trace = result.get("trace", {})
    return Failure(
        place=trace.get("place") or place,
        exception=trace.get("exception", ""),
        frames=tuple(trace.get("frames", ())),
        printed=result.get("printed", ""),
        completions=result.get("completions", 1),
    )


def failure_kind(score: Score) -> tuple[str, str]:
    """Failures of one kind come from the same line by the same kind of exception; their texts may differ."""
    if score.failure is not None and score.failure.exception:
        return score.failure.place, score.failure.exception.partition(":")[0]
    return "", score.error


def failure_facts(prompt: Prompt, rollout: Rollout, score: Score) -> dict[str, Any]:
    """A failed score as the fields of an event."""
    failure = score.failure or Failure()
    return {
        "error": score.error,
        "place": failure.place,
        "exception": failure.exception,
        "traceback": list(failure.frames),
        "printed": failure.printed,
        "completions": failure.completions,
        "prompt_id": prompt.id,
        "prompt": _shorten(prompt.text),
        "completion": _shorten(rollout.text),
    }


def failure_block(facts: Mapping[str, Any]) -> list[str]:
    """The same facts as lines for a terminal, each on one line and escaped."""
    place = f"{facts['place']}: " if facts["place"] else ""
    several = f" (one of {facts['completions']} in the call)" if facts["completions"] > 1 else ""
    lines = [
        f"{place}{facts['exception'] or facts['error']}",
        *_traceback(facts["traceback"]),
        f"prompt {facts['prompt_id']}: {facts['prompt']!r}",
        f"completion{several}: {facts['completion']!r}",
        *_printed_lines(facts["printed"]),
    ]
    return [escape(line) for line in lines]


def load_error(spec: str, reply: Mapping[str, Any], printed: str) -> ConfigError:
    """A function that cannot be loaded; the notes of the error are lines that say more."""
    trace = reply.get("trace", {})
    where = f" (at {trace['place']})" if trace.get("place") else ""
    error = ConfigError(f"reward.functions = {spec!r}: {reply['error']}{where}")
    for line in (*_traceback(trace.get("frames", ())), *_printed_lines(printed)):
        error.add_note(escape(line))
    return error


def _traceback(frames: Sequence[str]) -> list[str]:
    return ["traceback, the last call last:", *(f"  {frame}" for frame in frames)] if frames else []


def _printed_lines(text: str) -> list[str]:
    """The first and the last of the lines."""
    if not text.strip():
        return []
    lines, half = text.rstrip("\n").split("\n"), _PRINTED_LINES // 2
    if len(lines) > _PRINTED_LINES:
        lines[half:-half] = [f"[... {len(lines) - _PRINTED_LINES} lines ...]"]
    return ["printed:", *(f"  {_shorten(line)}" for line in lines)]


def _shorten(text: str) -> str:
    if len(text) <= _QUOTED:
        return text
    half = _QUOTED // 2
    return f"{text[:half]}[... {len(text) - 2 * half:,} characters ...]{text[-half:]}"

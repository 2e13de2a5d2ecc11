"""events.jsonl --> sentences: how the run ended, and what went wrong on the way. They stand first in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.machine.terminal import quote

Event = Mapping[str, Any]

MOST_CHANGES = 5  # the newest ones
LONGEST = 600  # characters of a reason; user code may have written it
_BEGINS, _ENDS = ("start", "resume"), ("failed", "stopped", "finished")
_ON_THE_WAY = {
    "skipped update": "an update was skipped",
    "damaged checkpoint": "a checkpoint is damaged",
    "damaged record": "a part of the record could not be verified when the run was resumed",
    "not examined": "an update was not examined",
    "stopped early": "the run stopped early",
    "doctor failed": "the doctor broke while the run was made",
}


def sentences_of(events: Sequence[Event]) -> list[str]:
    """The end first. A failure or a stop counts as the end only if the run was not resumed after it."""
    last = next((event for event in reversed(events) if event.get("kind") in (*_BEGINS, *_ENDS)), {})
    kind = last.get("kind")
    found = []
    if kind == "failed":
        found.append(f"the run failed{_reason(last)}")
    elif kind == "stopped":
        found.append(f"the run was stopped by {_text(last, 'signal') or 'a signal'} and can be resumed")
    elif kind in _BEGINS:
        found.append("events.jsonl records no end: the run is still going on, or was killed")
    for kind, sentence in _ON_THE_WAY.items():
        same = [event for event in events if event.get("kind") == kind]
        if same:
            often = f" ({len(same)} times; this is the last)" if len(same) > 1 else ""
            found.append(f"{sentence}{_place(same[-1])}{often}{_reason(same[-1])}")
    changes = [event for event in events if event.get("kind") == "changed"]
    for event in changes[-MOST_CHANGES:]:
        names = ("setting", "before", "after", "step")
        setting, before, after, step = (quote(str(event.get(name)))[1:-1] for name in names)
        found.append(f"{setting} was changed from {before} to {after} after step {step}")
    return found


def size_of_model(events: Sequence[Event]) -> dict[str, int]:
    """The setting `parameters`; {} of a run that did not record it."""
    known = [event["parameters"] for event in events if event.get("kind") == "start" and "parameters" in event]
    return {"parameters": known[-1]} if known else {}


def was_watched(events: Sequence[Event]) -> bool:
    """Whether a process of the run ended with the doctor beside it, and so left examined updates."""
    return any(event.get("kind") == "finished" and "doctor_seconds" in event for event in events)


def _place(event: Event) -> str:
    places = [f"{name} {event[name]}" for name in ("step", "update") if type(event.get(name)) is int]
    return f" at {', '.join(places)}" if places else ""


def _reason(event: Event) -> str:
    text = _text(event, "reason")
    return f": {text}" if text else ""


def _text(event: Event, name: str) -> str:
    text = event.get(name)
    if not isinstance(text, str):
        return ""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 2 :]}"

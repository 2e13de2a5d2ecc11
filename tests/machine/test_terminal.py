"""The line of progress: it names what is read now, and clears only what it has shown."""

import pytest

from assay.machine import terminal
from assay.machine.terminal import ProgressLine, escape


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: True)
    return ProgressLine()


def test_a_line_that_is_to_be_shown_at_once_is(live, capsys):
    live.show("reading metrics.jsonl", at_once=True)
    live.show("reading model.safetensors", at_once=True)
    assert "model.safetensors" in capsys.readouterr().err


def test_others_wait_for_their_turn(live, capsys):
    live.show("1 of 3")
    live.show("2 of 3")
    assert "2 of 3" not in capsys.readouterr().err


def test_nothing_is_cleared_that_was_not_shown(live, capsys):
    live.clear()
    assert capsys.readouterr().err == ""


def test_in_a_log_nothing_is_said_of_short_work(capsys):
    line = ProgressLine()
    line.show("reading", at_once=True)
    line.clear()
    assert capsys.readouterr().err == ""


def test_spaces_that_cannot_be_seen_are_escaped_in_names_and_kept_in_texts():
    assert escape("a\u00a0b") == "a\\xa0b"
    assert escape("a\u00a0b", arrows=True) == "a\u00a0b"

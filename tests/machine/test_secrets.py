"""Secrets are taken out of texts in whatever spelling they come back."""

import base64
import html
import json
import urllib.parse

import pytest

from assay.machine.secrets import redact, secrets, without_secrets

KEY = 'sk-0?1>2/3+4~5 "6&7\\8'
DATA = KEY.encode()
IN_BASE64 = base64.b64encode(DATA).decode()

MARK = "[value of JUDGE_API_KEY]"

SPELLINGS = {
    "itself": KEY,
    "reversed": KEY[::-1],
    "hex": DATA.hex(),
    "hex in capitals": DATA.hex().upper(),
    "percent-encoded": urllib.parse.quote(KEY),
    "percent-encoded, slashes too": urllib.parse.quote(KEY, safe=""),
    "percent-encoded in small letters": urllib.parse.quote(KEY, safe="").lower(),
    "a form": urllib.parse.quote_plus(KEY),
    "every byte percent-encoded": "".join(f"%{byte:02x}" for byte in DATA),
    "JSON": json.dumps(KEY)[1:-1],
    "JSON of PHP": json.dumps(KEY)[1:-1].replace("/", "\\/"),
    "Python": repr(KEY)[1:-1],
    "hex with colons": DATA.hex(":"),
    "over two lines": f"{KEY[:9]}\n    {KEY[9:]}",
    "over two lines, quoted": f"{KEY[:9]}\\r\\n{KEY[9:]}",
    "hex in lines": "\r\n".join((DATA.hex()[:20], DATA.hex()[20:])),
    "base64 in quoted lines": "\\n".join((IN_BASE64[:9], IN_BASE64[9:])),
    "HTML": html.escape(KEY),
    "base64": IN_BASE64,
    "base64 without padding": IN_BASE64.rstrip("="),
    "base64 for URLs": base64.urlsafe_b64encode(DATA).decode(),
}
INSIDE = {
    "after one byte": base64.b64encode(b"x" + DATA + b"yz").decode(),
    "after two bytes": base64.urlsafe_b64encode(b"xy" + DATA + b"z").decode(),
    "a header": base64.b64encode(b"Bearer " + DATA).decode(),
    "in a URL": urllib.parse.quote(base64.b64encode(b"xy" + DATA).decode(), safe=""),
    "in the JSON of PHP": base64.b64encode(b"x" + DATA).decode().replace("/", "\\/"),
    "in lines": base64.encodebytes(b"x" * 50 + DATA + b"y" * 50).decode(),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_secret_is_taken_out_in_every_spelling(monkeypatch, name):
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    assert without_secrets(f"401 for {SPELLINGS[name]}, sorry") == f"401 for {MARK}, sorry"


@pytest.mark.parametrize("name", INSIDE)
def test_a_secret_inside_of_a_longer_base64_is_taken_out(monkeypatch, name):
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    before, mark, after = without_secrets(INSIDE[name]).partition(MARK)
    assert mark
    whole = "".join(INSIDE[name].split())
    left = len(whole) - len("".join((before + after).split()))
    assert left >= 8 * len(DATA) // 6  # nothing of it stays, not even a part of a character


def test_text_without_a_secret_stays_as_it_is(monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    monkeypatch.setenv("SHORT_KEY", "reward")
    monkeypatch.setenv("EMPTY_KEY", " " * 9)
    text = "the reward could not be computed: c2VjcmV0IGtleQ== %41 0x73 \\u0041\n         indented\n"
    assert without_secrets(text) == text


def test_white_space_around_a_secret_is_no_part_of_it(monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", " first-value\n")
    assert without_secrets("refused: first-value.") == "refused: [value of JUDGE_API_KEY]."


def test_a_variable_that_changes_is_seen(monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "first-value")
    assert without_secrets("first-value second-value") == "[value of JUDGE_API_KEY] second-value"
    monkeypatch.setenv("JUDGE_API_KEY", "second-value")
    assert without_secrets("first-value second-value") == "first-value [value of JUDGE_API_KEY]"
    assert secrets({"A_TOKEN": "x" * 8, "B_TOKEN": "y" * 9, "C_TOKEN": "z"}) == {"B_TOKEN": "y" * 9, "A_TOKEN": "x" * 8}


def test_a_short_value_that_is_named_is_taken_out_as_it_is_and_in_no_other_spelling():
    assert redact("the key abc, reversed cba", {"KEY": "abc"}) == "the key [value of KEY], reversed cba"

"""Secrets of the environment: an error message may quote one, and must not carry it into a record."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

# the endings under which services keep credentials in the environment: OPENAI_API_KEY, HF_TOKEN, DB_PASSWORD
_SECRET_NAME = re.compile(r"(KEY|KEY_ID|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_SECRET = 8  # characters; a shorter value ("1", "true") is no secret and would blank innocent words


def secrets(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that look like credentials -> their values, longest first: one may contain another."""
    found = {
        name: value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def without_secrets(text: str) -> str:
    """The text with the value of each secret environment variable replaced by the variable's name."""
    for name, value in secrets().items() if text else ():  # most texts are empty, and reading the environment is slow
        text = text.replace(value, f"[value of {name}]")
    return text

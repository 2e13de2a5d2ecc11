"""Specimens that were written without reading the checks: the published page is that of the verdicts on record."""

import json
from pathlib import Path

import pytest

from proof.blind.run import DOORS, SPECIMENS
from proof.blind.table import page_text

PAGE = Path(__file__).parents[2] / "docs/proof-blind.md"


def labels(number, door):
    path = SPECIMENS[number] / door / "labels.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_page_is_that_of_the_record():
    assert PAGE.read_text() == page_text(), "run: python -m proof.blind.table docs/proof-blind.md"


@pytest.mark.parametrize(("number", "planted", "sound"), [(1, 166, 126), (2, 94, 66), (3, 36, 20)])
def test_every_specimen_has_a_label(number, planted, sound):
    for door in DOORS:
        files = {label["file"].rstrip("/") for label in labels(number, door)}
        if door != "logs":  # these are made by make.py
            assert files == {path.name for path in (SPECIMENS[number] / door).glob("a[0-9][0-9].py")}
    laws = [label["law"] for door in DOORS for label in labels(number, door)]
    assert (sum(law != "healthy" for law in laws), laws.count("healthy")) == (planted, sound)

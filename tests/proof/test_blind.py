"""Specimens that were written without reading the checks: the published page is that of the verdicts on record."""

import json
from pathlib import Path

from proof.blind.run import DOORS, SPECIMENS
from proof.blind.table import page_text

PAGE = Path(__file__).parents[2] / "docs/proof-blind.md"


def labels(door):
    return [json.loads(line) for line in (SPECIMENS / door / "labels.jsonl").read_text().splitlines()]


def test_the_page_is_that_of_the_record():
    assert PAGE.read_text() == page_text(), "run: python -m proof.blind.table docs/proof-blind.md"


def test_every_specimen_has_a_label_and_both_halves_are_alike():
    for door in DOORS:
        files = {label["file"].rstrip("/") for label in labels(door)}
        if door != "logs":  # these are made by make.py
            assert files == {path.name for path in (SPECIMENS / door).glob("a[0-9][0-9].py")}
        odd = sum(int(file[1:3]) % 2 for file in files)
        assert odd * 2 == len(files)
    laws = [label["law"] for door in DOORS for label in labels(door)]
    assert sum(law != "healthy" for law in laws) >= 150
    assert laws.count("healthy") >= 120

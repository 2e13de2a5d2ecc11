"""The corpus of scripts: every plant fits its script, clean scripts stay silent, and reading names what was planted."""

import ast
import json

import pytest

from assay.doctor.catalogue import by_code
from proof.corpus import SEEN_IN_RUN, SEEN_IN_SOURCE, CorpusError, Edit, Specimen, as_script, specimens, write
from proof.of_scripts import SOURCE_BAR, Seen, read
from proof.script_table import breaches, page, planted, summary

SPECIMENS = specimens()
SILENT = [one for one in SPECIMENS if not one.code]
PLANTED = [one for one in SPECIMENS if one.code and one.in_source]


def name_of(one):
    return f"{one.script}: {one.form}"


def test_there_is_enough_of_it():
    assert len({one.script for one in SPECIMENS}) >= 7
    assert sum(bool(one.code) for one in SPECIMENS) >= 250
    assert {one.code for one in SPECIMENS} >= SEEN_IN_SOURCE | SEEN_IN_RUN


def test_no_two_plants_are_the_same():
    assert len({(one.script, one.edits) for one in SPECIMENS if one.edits}) == sum(bool(one.edits) for one in SPECIMENS)


def test_every_plant_fits_its_script_and_is_python(tmp_path):
    for number, one in enumerate(SPECIMENS):
        folder = tmp_path / str(number)
        folder.mkdir()
        main = write(one, folder)
        for file in (as_script(main), *folder.glob("*.py")):
            ast.parse(file.read_text())


def test_a_plant_that_does_not_fit_is_told(tmp_path):
    with pytest.raises(CorpusError, match="occurs 0 times"):
        write(Specimen("reference.py", "nothing", (Edit("no such text", ""),)), tmp_path)


@pytest.mark.parametrize("one", SILENT, ids=name_of)
def test_reading_finds_nothing_in_a_clean_script_or_a_deliberate_variant(one):
    assert read(one).findings == ()


def test_reading_names_what_was_planted():
    seen = [read(one) for one in PLANTED[::3]]  # `make proof-scripts` reads them all
    named = sum(one.is_named for one in seen)
    assert named / len(seen) >= SOURCE_BAR, summary(seen, misses=True)


def test_the_codes_of_the_corpus_are_in_the_catalogue():
    for one in SPECIMENS:
        for code in one.names - {""}:
            assert by_code(code) is not None, (code, one.form)


def seen(code, *findings, how="source", **changes):
    return Seen(Specimen("a.py", "b", code=code, **changes), how, findings)


def test_a_possible_finding_names_nothing_and_another_right_name_does():
    assert not seen("ADV04", ("ADV04", "possible")).is_named
    assert seen("ADV04", ("ADV05", "likely"), also=frozenset({"ADV05"})).is_named
    assert not seen("ADV04", ("ADV05", "likely")).is_named


def test_a_false_alarm_and_a_low_recall_break_the_bar():
    good, missed, alarm = seen("ADV04", ("ADV04", "likely")), seen("ADV04"), seen("", ("KL01", "possible"))
    assert breaches([good]) == []
    assert "50.0% of 2" in breaches([good, missed])[0]
    assert "KL01 is a false alarm" in breaches([good, alarm])[0]
    assert planted([seen("ADV04", in_source=False)], "source") == []
    assert "| ADV04 | 1 | 1/2 | - |" in page([good, missed])


def test_a_notebook_becomes_a_script(tmp_path):
    path = tmp_path / "a.ipynb"
    cells = [{"cell_type": "markdown", "source": ["# x"]}, {"cell_type": "code", "source": ["%time\n", "x = 1\n"]}]
    path.write_text(json.dumps({"cells": cells}))
    assert as_script(path).read_text() == "pass\nx = 1\n"

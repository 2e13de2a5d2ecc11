"""Every illness that is found in source carries two scripts: it fires on one and nothing fires on the other."""

import ast

import pytest

from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.programs.read.script import read_program
from assay.verdict import Confidence, State

ILLNESSES = [one for one in catalogue() if one.source is not None]


def diagnosis_of(text, folder):
    path = folder / "script.py"
    path.write_text(text)
    return diagnose(Evidence(programs=(read_program(path),)), ILLNESSES)


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda one: one.code)
def test_it_fires_on_its_sick_script_and_nothing_else_does(illness, tmp_path):
    diagnosis = diagnosis_of(illness.scripts.sick, tmp_path)
    assert not diagnosis.of(State.CRASHED)
    found = {word.code: word.verdict for word in diagnosis.findings}
    assert illness.code in found
    assert set(found) - {illness.code} <= illness.explains, found
    assert found[illness.code].confidence is not Confidence.PROVEN, "the text alone proves nothing"
    assert found[illness.code].places[0].line >= 1


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda one: one.code)
def test_its_well_script_is_looked_at_and_found_healthy(illness, tmp_path):
    diagnosis = diagnosis_of(illness.scripts.well, tmp_path)
    assert not diagnosis.of(State.CRASHED)
    assert not [(word.code, word.verdict.message) for word in diagnosis.findings]
    (own,) = [word for word in diagnosis.words if word.code == illness.code]
    assert own.verdict.state is State.HEALTHY, own.verdict


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda one: one.code)
def test_its_scripts_are_neighbours(illness):
    sick, well = illness.scripts.sick.splitlines(), illness.scripts.well.splitlines()
    assert ast.dump(ast.parse(illness.scripts.sick)) != ast.dump(ast.parse(illness.scripts.well))
    assert len(set(sick) ^ set(well)) <= 8, "the smallest change that matters"


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda one: one.code)
def test_a_comment_silences_it(illness, tmp_path):
    diagnosis = diagnosis_of(illness.scripts.sick, tmp_path)
    lines = illness.scripts.sick.splitlines()
    places = [place for word in diagnosis.findings if word.code == illness.code for place in word.verdict.places]
    for place in places:
        if "# assay" not in lines[place.end_line - 1]:
            lines[place.end_line - 1] += f"  # assay: ignore[{illness.code}] known"
    silenced = diagnosis_of("\n".join(lines), tmp_path)
    assert illness.code not in {word.code for word in silenced.findings}

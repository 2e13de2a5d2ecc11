"""The catalogue proves itself: these tests hold for every illness file and are not edited when one is added."""

import ast
import re
from pathlib import Path

import pytest

from assay.doctor import illnesses
from assay.doctor.catalogue import HEADINGS, by_code, catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples import healthy_batch, healthy_curves
from assay.verdict import Confidence, Severity, State

ILLNESSES = catalogue()
SHOWN_BY_CURVES = {
    "LAW01",
    "ADV03",
    "HYP01",
    "KL01",
    "LAW07",
    "LAW09",
    "MET08",
    "REW01",
}  # of the sick examples: a rate out of all ranges, a lost policy, one reward, a KL that is taken off the loss
RECORDED = [one for one in ILLNESSES if one.sick is not None]  # scripts have their own tests
KINDS = [(one, kind) for one in ILLNESSES for kind in ("batch", "curves", "reward") if getattr(one, kind) is not None]


def evidence_of(kind: str, whole: Evidence) -> Evidence:
    return {
        "batch": Evidence(batches=whole.batches),
        "curves": Evidence(curves=whole.curves),
        "reward": Evidence(reward=whole.reward),
    }[kind]


def name_of(value):
    return value if isinstance(value, str) else value.code


def crashes(diagnosis):
    return [f"{word.code}: {word.verdict.message}" for word in diagnosis.of(State.CRASHED)]


@pytest.mark.parametrize(("illness", "kind"), KINDS, ids=name_of)
def test_it_fires_on_its_sick_example(illness, kind):
    (word,) = diagnose(evidence_of(kind, illness.sick()), [illness]).words
    assert word.verdict.state is State.FINDING, word.verdict.message
    assert any(character.isdigit() for character in word.verdict.message + "".join(map(str, word.verdict.facts)))
    assert word.verdict.facts or kind == "reward", "a finding shows its numbers"


@pytest.mark.parametrize(("illness", "kind"), KINDS, ids=name_of)
def test_it_is_silent_on_its_well_example(illness, kind):
    (word,) = diagnose(evidence_of(kind, illness.well()), [illness]).words
    assert word.verdict.state is State.HEALTHY, word.verdict.message


@pytest.mark.parametrize("illness", RECORDED, ids=name_of)
def test_nothing_else_as_grave_fires_on_its_sick_example_and_no_check_crashes(illness):
    diagnosis = diagnose(illness.sick())
    assert crashes(diagnosis) == []
    (own,) = [word for word in diagnosis.findings if word.code == illness.code]
    others = [
        f"{word.code}: {word.verdict.message}"
        for word in diagnosis.findings
        if word is not own and word.severity.rank >= own.severity.rank
        if not illness.can_cause(word.illness) and not word.illness.can_cause(illness)
    ]
    assert not others
    assert diagnosis.findings[0].code == illness.code or illness.explained_by  # an illness stands before its law


@pytest.mark.parametrize("illness", RECORDED, ids=name_of)
def test_no_check_crashes_on_its_well_example(illness):
    assert crashes(diagnose(illness.well())) == []


@pytest.mark.parametrize("update", [0, 1])
def test_the_healthy_example_has_no_finding(update):
    diagnosis = diagnose(Evidence((healthy_batch(update=update),), healthy_curves()))
    assert not [f"{word.code}: {word.verdict.message}" for word in diagnosis.findings]
    assert crashes(diagnosis) == []


@pytest.mark.parametrize("illness", [one for one in ILLNESSES if one.curves is not None], ids=name_of)
def test_curves_are_a_sign_and_only_possible_unless_they_show_the_death_itself(illness):
    (word,) = diagnose(evidence_of("curves", illness.sick()), [illness]).words
    assert word.confidence is (Confidence.LIKELY if illness.code in SHOWN_BY_CURVES else Confidence.POSSIBLE)


@pytest.mark.parametrize("illness", ILLNESSES, ids=name_of)
def test_missing_data_is_named_and_never_healthy(illness):
    for empty in (Evidence(), Evidence(batches=(healthy_batch().of({}),), curves=healthy_curves().__class__([]))):
        (word,) = diagnose(empty, [illness]).words
        assert word.verdict.state in (State.NOT_ENOUGH_DATA, State.NOT_APPLICABLE), word.verdict.message
        assert word.verdict.message


@pytest.mark.parametrize("illness", ILLNESSES, ids=name_of)
def test_the_explanation_has_the_fixed_headings_in_order(illness):
    assert tuple(re.findall(r"^## (.+)$", illness.explanation, re.MULTILINE)) == HEADINGS
    parts = re.split(r"^## .+$", illness.explanation, flags=re.MULTILINE)[1:]
    assert all(len(part.split()) >= 8 for part in parts)
    if illness.severity is not Severity.WASTEFUL:
        assert re.search(r"^    # (before|after)", parts[2], re.MULTILINE), "the fix shows code, before and after"


def test_code_in_the_explanations_is_python():
    for illness in ILLNESSES:
        for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", illness.explanation, re.MULTILINE):
            ast.parse("\n".join(line[4:] for line in block.splitlines()), illness.name)


def test_codes_and_names_are_unique_and_well_formed():
    assert len({one.code for one in ILLNESSES}) == len({one.name for one in ILLNESSES}) == len(ILLNESSES)
    for one in ILLNESSES:
        assert re.fullmatch(r"[A-Z]{2,4}\d\d", one.code)
        assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", one.name)
        assert one.explains <= {other.code for other in ILLNESSES} - {one.code}, one.code


def test_each_kind_of_check_carries_its_proof():
    for illness in ILLNESSES:
        of_records = illness.looks_at("batch", "batches", "curves", "reward")
        assert (illness.sick is None) == (illness.well is None) == (not of_records), illness.code
        assert (illness.scripts is None) == (illness.source is None), illness.code
        assert illness.looks_at("batch", "batches", "curves", "source", "run", "reward"), illness.code


def test_a_file_is_named_after_its_illness():
    files = {path.stem for path in Path(illnesses.__path__[0]).rglob("*.py")} - {"__init__"}
    assert files == {one.name for one in ILLNESSES if not one.explained_by}  # laws have their own room


def test_each_is_found_by_code_and_by_name():
    for illness in ILLNESSES:
        assert by_code(illness.code.lower()) is by_code(illness.name.replace("_", "-")) is illness

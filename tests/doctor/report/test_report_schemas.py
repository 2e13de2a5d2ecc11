"""Machine output is what its schema says: ours for JSON, that of OASIS for SARIF 2.1.0."""

import json
from pathlib import Path

import jsonschema
import pytest
from doctor.report.sick_evidence import of_all

from assay.doctor import report
from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import Diagnosis, Word, diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.report import Report, write
from assay.verdict import State, Verdict

OURS = json.loads((Path(report.__file__).parent / "schema-1.json").read_text())
SARIF = json.loads((Path(__file__).parent / "sarif-2.1.0.json").read_text())
SCHEMAS = {
    "json": jsonschema.Draft202012Validator(OURS),
    "sarif": jsonschema.Draft7Validator(SARIF, format_checker=jsonschema.FormatChecker()),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    evidence_of = of_all(tmp_path_factory.mktemp("sick"))
    made = [
        Report.of(f"runs/{illness.name}", evidence, diagnose(evidence, [illness])) for illness, evidence in evidence_of
    ]
    empty = Report.of("empty", Evidence(notes=("a torn line",)), diagnose(Evidence()))
    crashed = Word(catalogue()[0], Verdict(State.CRASHED, "ValueError: no"))
    return [Report("crashed", Diagnosis((crashed,))), empty, *made]


@pytest.mark.parametrize("how", SCHEMAS)
def test_every_report_is_valid_alone_or_with_all_others(how, reports):
    for alone in reports[:4]:
        SCHEMAS[how].validate(json.loads(write([alone], how)))
    SCHEMAS[how].validate(json.loads(write(reports, how)))


@pytest.mark.parametrize("how", SCHEMAS)
def test_the_schemas_can_fail(how, reports):
    whole = json.loads(write(reports[:1], how))
    broken = {"json": {**whole, "findings": 3}, "sarif": {**whole, "version": "3"}}[how]
    with pytest.raises(jsonschema.ValidationError):
        SCHEMAS[how].validate(broken)


def test_the_schemas_are_schemas():
    jsonschema.Draft202012Validator.check_schema(OURS)
    jsonschema.Draft7Validator.check_schema(SARIF)

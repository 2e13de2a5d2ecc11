"""A script as text --> what reading it finds; and texts with exactly one place changed."""

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.programs.read.script import read_program
from assay.verdict import Confidence, State


def findings_in(text, folder, codes):
    path = folder / "script.py"
    path.write_text(text)
    diagnosis = diagnose(Evidence(programs=(read_program(path),)), [by_code(code) for code in codes])
    assert not [(word.code, word.verdict.message) for word in diagnosis.of(State.CRASHED)]
    return diagnosis.findings


def codes_in(text, folder, codes):
    return {word.code for word in findings_in(text, folder, codes)}


def likely_codes_in(text, folder, codes):
    return {word.code for word in findings_in(text, folder, codes) if word.confidence is Confidence.LIKELY}


def edit_script(text, *pairs):
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text

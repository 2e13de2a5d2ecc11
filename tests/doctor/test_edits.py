"""Every proposed edit: on the illness's own example, on other ways to write the fault, and what must not be edited."""

import tomllib
from pathlib import Path

import pytest

from assay.doctor.catalogue import by_code, catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples.scripts import GENERATE, GRPO, IN_PARTS, LOOP, WHOLE
from assay.doctor.prove_edits import Script
from assay.programs.edits import applied
from assay.programs.read.script import read_program

ILLNESSES = [one for one in catalogue() if one.source is not None]
PROPOSING = [one for one in ILLNESSES if one.edits is not None]
NOT_OF_ITS_EXAMPLE = {"ALGN09"}  # the ids that were drawn stand in another structure there
SCRIPTS = {"GRPO": GRPO, "GENERATE": GENERATE, "IN_PARTS": IN_PARTS, "LOOP": LOOP, "WHOLE": WHOLE}
FORMS = tomllib.loads((Path(__file__).parent / "edits.toml").read_text())["form"]


def findings(path):
    return diagnose(Evidence(programs=(read_program(path),)), ILLNESSES).findings


def edit_of(path, text, code):
    path.write_text(text, encoding="utf-8")
    found = [word for word in findings(path) if word.code == code]
    assert found, f"{code} is not found"
    return Script(path).edit_of(found[0])


@pytest.mark.parametrize("illness", PROPOSING, ids=lambda one: one.code)
def test_the_example_is_healthy_after_its_edit(illness, tmp_path):
    path = tmp_path / "grpo.py"
    edit = edit_of(path, illness.scripts.sick, illness.code)
    assert (edit is None) == (illness.code in NOT_OF_ITS_EXAMPLE)
    if edit is not None:
        path.write_text(applied(illness.scripts.sick, [edit]), encoding="utf-8")
        assert findings(path) == []


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form['code']}-{FORMS.index(form)}")
def test_another_form_is_healthy_after_its_edit(form, tmp_path):
    path = tmp_path / "grpo.py"
    base = SCRIPTS.get(form["base"]) or by_code(form["code"]).scripts.sick
    assert form["old"] in base
    text = base.replace(form["old"], form["new"])
    after = applied(text, [edit_of(path, text, form["code"])])
    path.write_text(after, encoding="utf-8")
    assert findings(path) == []
    before, lines = text.split("\n"), after.split("\n")
    written = dict.fromkeys(line for line in lines if before.count(line) < lines.count(line))
    assert list(written) == (form["written"].split("\n") if form["written"] else [])


def test_every_illness_that_proposes_edits_has_two_other_forms():
    counted = {code: sum(form["code"] == code for form in FORMS) for code in {one.code for one in PROPOSING}}
    assert {code for code, count in counted.items() if count < 2} == NOT_OF_ITS_EXAMPLE | {"ADV06"}


# what would only silence a check


def test_a_mean_of_rewards_without_an_axis_of_groups_is_not_given_one(tmp_path):
    flat = GRPO.replace(".view(-1, 8)\n", "\n").replace("dim=1, keepdim=True", "")
    path = tmp_path / "grpo.py"
    path.write_text(flat)
    words = {word.code: word for word in findings(path)}
    assert "ADV01" in words
    assert Script(path).edit_of(words["ADV01"]) is None


def test_a_keyword_that_a_dictionary_may_hold_is_not_given_twice(tmp_path):
    text = GENERATE.replace("chat, add_generation_prompt=True, tokenize=False", "chat, **settings")
    text = text.replace("GROUP = 8\n", 'GROUP = 8\nsettings = {"add_generation_prompt": False, "tokenize": False}\n')
    assert edit_of(tmp_path / "grpo.py", text, "ALGN08") is None


def test_old_log_probs_of_a_batch_are_taken_by_the_rows_of_its_part(tmp_path):
    text = IN_PARTS.replace("new - old[rows]", "new - new.detach()")
    assert edit_of(tmp_path / "grpo.py", text, "RAT02").replacement == "old[rows]"


def test_nothing_is_divided_by_a_number_that_is_not_the_temperature(tmp_path):
    text = GENERATE.replace(".float() / 0.7", ".float()")
    edit = edit_of(tmp_path / "grpo.py", text, "SAMP01")
    assert edit.replacement.endswith(".float() / 0.7")


def test_a_name_that_is_not_known_there_is_not_used(tmp_path):
    text = LOOP.replace("GROUP, LENGTH, TEMPERATURE = 8, 16, 0.8", "GROUP, LENGTH = 8, 16")
    text = text.replace("def sample(prompts):", "def sample(prompts, temperature=0.8):").replace(
        "TEMPERATURE", "temperature"
    )
    text = text.replace("- 1:-1] / temperature", "- 1:-1]")
    edit = edit_of(tmp_path / "grpo.py", text, "SAMP01")
    assert edit is None or "temperature" not in edit.replacement


def test_an_edit_is_refused_if_the_check_then_has_nothing_to_look_at(tmp_path):
    """Without its ratio the script has no RAT04 either."""
    path = tmp_path / "grpo.py"
    path.write_text(by_code("RAT04").scripts.sick)
    script = Script(path)
    (word,) = findings(path)
    spot = script.at(word.verdict.places[0])
    assert not script.is_cured([spot.becomes("advantages")], {"RAT04"})
    assert not script.is_cured([spot.becomes("new - ")], {"RAT04"})
    assert script.is_cured([spot.becomes("new - old")], {"RAT04"})

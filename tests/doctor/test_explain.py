"""`assay explain`, and the table of illnesses in docs/doctor.md."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor.catalogue import HEADINGS, Illness, catalogue, illnesses_looking_at
from assay.doctor.explain import BEGIN, FAMILIES, by_family, list_illnesses, main, page_on, table, with_table
from assay.verdict import Severity

DOCS = Path(__file__).parent.parent.parent / "docs"
MADE_UP = Illness(
    "RAT98",
    "made_up",
    Severity.FATAL,
    "it is wrong",
    "change it",
    "## What it checks\nOne line\nand another.\n\nA second paragraph.\n\n"
    "    # before\n    x = [  1,\n          2]\n\n## End\nDone.",
    explains=frozenset({"ADV09"}),
)


def explain(*words):
    return CliRunner().invoke(app, ["explain", *words], env={"COLUMNS": "100"})


def test_the_list_holds_every_code():
    done = explain()
    assert done.exit_code == 0
    codes = re.findall(r"^  ([A-Z]+\d\d)", done.stdout, re.MULTILINE)
    assert sorted(codes) == [one.code for one in catalogue()]
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert codes.index("RAT01") < codes.index("REW02")
    line = next(line for line in done.stdout.splitlines() if line.startswith("  RAT01"))
    assert line.split()[:3] == ["RAT01", "harmful", "ratio_not_one"]
    assert re.search(r"^REW  the reward \(REW0[12] to REW17: assay reward-check\)$", done.stdout, re.MULTILINE)


def test_every_family_has_its_words():
    assert {illness.family for illness in catalogue()} <= set(FAMILIES)


@pytest.mark.parametrize("code", ["RAT01", "rat01", "ratio_not_one", "ratio-not-one"])
def test_one_is_found_by_code_and_by_name(code):
    done = explain(code)
    assert done.exit_code == 0
    assert done.stdout.startswith("RAT01 ratio_not_one (harmful)\n")
    assert [line for line in done.stdout.splitlines() if line in HEADINGS] == list(HEADINGS)


@pytest.mark.parametrize(
    ("code", "told"),
    [("RAT0", "did you mean RAT0"), ("rat1", "did you mean RAT01?"), ("??", "'assay explain' lists them all")],
)
def test_an_unknown_code_ends_with_2_and_the_nearest(code, told):
    done = explain(code)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_paragraphs_fill_the_width_and_code_keeps_its_lines():
    assert page_on(MADE_UP, width=80, colour=False).splitlines() == [
        "RAT98 made_up (fatal)",
        "it is wrong",
        "",
        "What it checks",
        "One line and another.",
        "",
        "A second paragraph.",
        "",
        "    # before",
        "    x = [  1,",
        "          2]",
        "",
        "End",
        "Done.",
        "",
        "What may follow from it: ADV09",
    ]
    assert "\x1b[1mEnd\x1b[0m" in page_on(MADE_UP, width=80, colour=True)


@pytest.mark.parametrize("illness", by_family(), ids=lambda illness: illness.code)
def test_every_line_of_code_stands_on_a_line_of_its_own(illness):
    code = [line for line in illness.explanation.splitlines() if line.startswith("    ")]
    assert code
    assert [line for line in page_on(illness, width=80, colour=False).splitlines() if line.startswith("    ")] == code


@pytest.mark.parametrize("illness", catalogue(), ids=lambda illness: illness.code)
def test_the_page_names_the_file_of_the_illness(illness):
    assert f"Its file: {illness.file}" in page_on(illness, width=80, colour=False).splitlines()
    assert illness.code in (DOCS.parent / illness.file).read_text()


def test_json_holds_the_explanation_as_it_is_written():
    one = json.loads(explain("RAT01", "--json").stdout)
    assert (one["code"], one["severity"], one["looks_at"]) == ("RAT01", "harmful", ["batch", "curves", "source"])
    assert one["explanation"].startswith("## What it checks\n")
    assert one["fix"]
    every = json.loads(explain("--json").stdout)["illnesses"]
    assert sorted(entry["code"] for entry in every) == [one.code for one in catalogue()]


@pytest.mark.parametrize("illness", illnesses_looking_at("reward"), ids=lambda illness: illness.code)
def test_every_illness_of_a_reward_says_who_looks_for_it(illness):
    shown = explain(illness.code).stdout
    assert shown.startswith(f"{illness.code} {illness.name} ({illness.severity})")
    also = "Also looked" if illness.code in ("REW01", "ADV04", "ADV09") else "Looked"
    assert shown.rstrip().endswith(f"\n{also} for by: assay reward-check")


def test_the_table_of_reward_check_is_that_of_its_illnesses():
    page = (DOCS / "reward-check.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+\d\d) \| (\w+) \|", page, re.MULTILINE)
    assert dict(rows) == {one.code: one.name for one in illnesses_looking_at("reward")}


def test_the_list_wraps_what_is_long():
    text = list_illnesses([MADE_UP], width=60, colour=False)
    assert text.splitlines() == ["RAT  the ratio new / old", "  RAT98  fatal    made_up  it is wrong"]


def test_the_table_in_the_docs_is_current():
    page = (DOCS / "doctor.md").read_text()
    assert page == with_table(page), "run: python -m assay.doctor.explain --table docs/doctor.md"


def test_the_table_is_written_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n<!-- illnesses: end -->\nafter\n")
    assert main(["--table", str(page)]) == 0
    text = page.read_text()
    assert text == f"before\n{BEGIN}\n{table()}\n<!-- illnesses: end -->\nafter\n"
    assert "| RAT01 | `ratio_not_one` | harmful | batch, curves, source |" in text
    assert main([]) == 2
    with pytest.raises(ValueError, match="once each"):
        with_table("no marks")

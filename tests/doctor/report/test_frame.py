"""The lines of a finding with their carets, and its edit, in every format."""

import json
from pathlib import Path

import jsonschema
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor.catalogue import by_code
from assay.doctor.report.frame import diff, frame, unified
from assay.verdict import Edit, Place

SICK = by_code("RAT04").scripts.sick  # line 29: the ratio upside down
SARIF = json.loads((Path(__file__).parent / "sarif-2.1.0.json").read_text())


def report(folder, how):
    path = folder / "grpo.py"
    path.write_text(SICK)
    return CliRunner().invoke(app, ["doctor", str(path), "--format", how], env={"COLUMNS": "100"}).stdout


def test_the_caret_stands_under_the_expression():
    lines = {"a.py": ["x = 1", "y = f(x) + 2"]}
    assert frame(Place("a.py", 2, 4, 2, 8), lines) == ["  |", "2 | y = f(x) + 2", "  |     ^^^^"]
    assert frame(Place("a.py", 2, 4, 2, 4), lines)[-1] == "  |     ^"
    assert frame(Place("b.py", 2, 4, 2, 8), lines) == []
    assert frame(Place("a.py", 9, 4, 9, 8), lines) == []


def test_tabs_and_wide_letters_keep_the_caret_in_its_column():
    lines = {"a.py": ["\ty = x", "\u65e5 = x"]}
    assert frame(Place("a.py", 1, 5, 1, 6), lines)[-1] == "  | \t    ^"
    assert frame(Place("a.py", 2, 4, 2, 5), lines)[-1] == "  |      ^"


def test_an_expression_of_several_lines_is_shown_in_part():
    lines = {"a.py": ["x = f(", "    1,", "    2,", "    3,", "    4,", ")"]}
    shown = frame(Place("a.py", 1, 4, 6, 1), lines)
    assert shown[1:3] == ["1 | x = f(", "  |     ^^"]
    assert shown[-1] == "  | ..."
    assert [row for row in shown if row.startswith("5")] == []


def test_a_long_line_is_shown_around_the_expression():
    (_, row, mark) = frame(Place("a.py", 1, 5000, 1, 5003), {"a.py": ["a" * 5000 + "xyz" + "b" * 5000]})
    assert len(row) < 200
    assert row[mark.index("^") : mark.index("^") + 3] == "xyz"


def test_the_diff_of_an_edit_has_only_its_lines():
    lines = {"a.py": ["a", "b - c", "d", ""]}
    edit = Edit(Place("a.py", 2, 2, 2, 3), "+")
    assert diff(edit, lines, context=0) == ["--- a.py", "+++ a.py", "@@ -2 +2 @@", "-b - c", "+b + c"]
    assert diff(edit, {}) == []
    assert unified("a", "b", "a.py")[-4:] == [
        "-a",
        "\\ No newline at end of file",
        "+b",
        "\\ No newline at end of file",
    ]


def test_every_format_shows_the_edit(tmp_path):
    removed, added = "-        ratio = torch.exp(old - new)", "+        ratio = torch.exp(new - old)"
    text = report(tmp_path, "full")
    assert "           29 |         ratio = torch.exp(old - new)\n" in text
    assert "              |                           ^^^^^^^^^\n" in text
    assert f"           {removed}\n           {added}\n" in text
    assert f"{removed}\n{added}" in report(tmp_path, "md")
    assert f"{removed}%0A{added}" in report(tmp_path, "github")
    (found,) = json.loads(report(tmp_path, "json"))["findings"]
    assert f"{removed}\n{added}" in found["edit"]["diff"]
    assert (found["edit"]["replacement"], found["edit"]["safe"]) == ("new - old", True)
    whole = json.loads(report(tmp_path, "sarif"))
    jsonschema.Draft7Validator(SARIF).validate(whole)
    (change,) = whole["runs"][0]["results"][0]["fixes"][0]["artifactChanges"]
    (replacement,) = change["replacements"]
    assert replacement["insertedContent"] == {"text": "new - old"}
    assert replacement["deletedRegion"] == {"startLine": 29, "startColumn": 27, "endLine": 29, "endColumn": 36}


def test_the_line_to_change_comes_before_the_line_where_it_is_seen(tmp_path):
    path = tmp_path / "grpo.py"
    path.write_text(by_code("KL05").scripts.sick)  # the reference is the policy itself
    text = CliRunner().invoke(app, ["doctor", str(path)], env={"COLUMNS": "100"}).stdout
    words = " ".join(text.split())  # a long path is wrapped
    line = path.read_text().split("\n").index("reference = policy") + 1
    assert words.index(f"> {path}:{line} ") < words.index(f"- see {path}:12 model(ids)")

"""A script with the files next to it, and the comments that ask to ignore a finding."""

import pytest

from assay.programs.read import script as programs
from assay.programs.read.script import read_program
from assay.verdict import Place


@pytest.mark.parametrize(
    "text",
    [
        "import other\ny = other.x",
        "import other as o\ny = o.x",
        "from other import x\ny = x",
        "from other import x as z\ny = z",
        "from other import *\ny = x",
        "from other import f\ny = f()",
        "from other import A\ny = A().x",
        "try:\n    from other import x\nexcept ImportError:\n    raise\ny = x",
    ],
)
def test_a_file_next_to_the_script_is_part_of_it(text, value_of):
    assert value_of(text, other="x = 5\ndef f(): return x\nclass A:\n    x = 5\n").constant == 5


def test_a_name_that_is_passed_on_by_a_file_is_found_where_it_is_made(value_of):
    assert value_of("from middle import x\ny = x", middle="from other import x", other="x = 5").constant == 5


def test_a_file_that_only_other_files_import_is_read_when_it_is_used(read):
    middle = "from far import unused\nfrom near import f\ndef g(): return f()\n"
    program = read("from middle import g\ny = g()", middle=middle, far="x = 1", near="def f(): return 5")
    assert [name.rpartition("/")[2] for name in program.files] == ["script.py", "middle.py", "near.py"]


def test_what_is_under_main_in_a_sibling_does_not_run(value_of):
    other = "x = 1\nif __name__ == '__main__':\n    x = 2\n"
    assert value_of("from other import x\ny = x", other=other).constant == 1


def test_values_of_a_sibling_have_its_places(read):
    program = read("from other import f\ny = f(1)", other="\ndef f(a):\n    return a + b\n")
    (value,) = program.of("add")
    assert value.place.file.endswith("other.py")
    assert value.place.line == 3


def test_files_that_import_each_other_are_read_once(read):
    program = read("import other\nfrom other import x\ny = x", other="import script\nfrom script import y\nx = 5\n")
    assert len(program.files) == 2


def test_a_script_that_imports_itself_is_read(read):
    assert read("import script\nfrom script import y\ny = 1\n").notes == ()


def test_a_sibling_that_is_no_python_is_noted(read):
    program = read("from other import x\ny = x", other="def f(:\n")
    assert "other.py:1 is not valid Python" in program.notes[0]


def test_a_package_is_found_from_its_own_files(tmp_path):
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "other.py").write_text("x = 5")
    (tmp_path / "package" / "inner" / "__init__.py").write_text("")
    script = tmp_path / "package" / "inner" / "script.py"
    script.write_text("from ..other import x\nfrom package.other import x as z\na = x\nb = z\n")
    values = [one for one in read_program(script).values if {"a", "b"} <= set(one.names)]
    assert [one.constant for one in values] == [5]


def test_a_script_within_an_installed_package_takes_other_packages_for_libraries(tmp_path):
    installed = tmp_path / "site-packages"
    for name in ("ours", "torch"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text("x = 5")
    (installed / "ours" / "script.py").write_text("import torch\nfrom ours import x\na = torch.x\n")
    program = read_program(installed / "ours" / "script.py")
    assert [name.rpartition("/")[2] for name in program.files] == ["script.py", "__init__.py"]
    assert "ours" in program.files[1]


def test_no_more_files_are_read_than_can_be_looked_at(read, monkeypatch):
    monkeypatch.setattr(programs, "MOST_LINES", 3)
    program = read("import a\nimport b\n", a="x = 1\n" * 10, b="x = 1\n")
    assert len(program.files) == 2


IGNORED = (
    "a = f(  # assay: ignore[LOSS01, kl02] measured\n    b)\nc = 1\nd = 2  # assay: ignore\ne = '# assay: ignore'\n"
)


@pytest.mark.parametrize(
    ("line", "end", "code", "answer"),
    [
        (1, 2, "LOSS01", True),
        (1, 2, "KL02", True),
        (1, 2, "KL03", False),
        (2, 2, "LOSS01", True),
        (3, 3, "LOSS01", False),
        (4, 4, "KL03", True),
        (5, 5, "KL03", False),
        (6, 6, "KL03", False),
    ],
)
def test_a_comment_asks_to_ignore_a_code_there(line, end, code, answer, read):
    program = read(IGNORED)
    place = Place(program.files[0], line, 0, end, 1)
    assert program.ignores_at(place, code) is answer
    assert bool(program.used_ignores) is answer


def test_an_ignore_keeps_its_reason_and_a_string_is_none(read):
    assert [(one.place.line, one.reason) for one in read(IGNORED).ignores] == [(1, "measured"), (4, "")]


@pytest.mark.parametrize("name", ["ratio_form", "ratio-form", "RATIO_FORM"])
def test_a_name_is_ignored_like_its_code(name, read):
    program = read(f"a = 1  # assay: ignore[{name}] on purpose\n")
    place = Place(program.files[0], 1, 0, 1, 1)
    assert not program.ignores_at(place, "RAT05", "old_is_new")
    assert not program.silenced
    assert program.ignores_at(place, "RAT08", "ratio_form")
    assert [(code, one.reason) for (code, _), one in program.silenced.items()] == [("RAT08", "on purpose")]


def test_an_ignore_of_another_file_does_not_count(read):
    assert not read(IGNORED).ignores_at(Place("another.py", 1, 0, 2, 1), "LOSS01")


def test_an_if_of_a_thousand_branches_is_read(read):
    text = "if a == 0:\n    x = 0\n" + "".join(f"elif a == {at}:\n    x = {at}\n" for at in range(1, 1000))
    assert read(text + "y = x").notes == ()


def test_a_sum_of_two_thousand_terms_is_read(read):
    program = read("y = " + "+".join(["a"] * 2000))
    assert (len(program.of("add")), program.notes) == (1999, ())


def test_functions_within_functions_are_read(read):
    text = "".join("  " * depth + f"def f{depth}(a):\n" for depth in range(90)) + "  " * 90 + "return 1\n"
    assert read(text).notes == ()


@pytest.mark.parametrize(("text", "lines"), [("x = 1\ny = 2\n", 2), ("x = 1\ny = 2", 2), ("x = 1\n\n", 2), ("", 0)])
def test_lines_are_counted_as_an_editor_does(text, lines, read):
    assert read(text).lines == lines

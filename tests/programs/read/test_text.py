"""Files --> Python text, in whatever shape they are stored."""

import json

import pytest

from assay.programs.read.script import read_program
from assay.programs.read.text import SourceError, read_module, scripts_in


def written(tmp_path, content, name="script.py"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"x = 1\ny = 2\n",
        b"\xef\xbb\xbfx = 1\ny = 2\n",
        b"x = 1\r\ny = 2\r\n",
        b"x = 1\ry = 2\r",
        b"# -*- coding: latin-1 -*- \xe9\ny = 2\n",
        b"x = '\xff'\ny = 2\n",
        b"# coding: nonsense\ny = 2\n",
        b"x = 1\0\ny = 2\n",
        b"x = 1\x0c\ny = 2\n",
        "x = 'a\u2028b\u0085c'\ny = 2\n".encode(),
        b"if 1:\n\ty = 2\n",
    ],
)
def test_a_script_in_any_encoding_is_read_and_its_lines_counted(content, tmp_path):
    program = read_program(written(tmp_path, content))
    (value,) = [one for one in program.values if "y" in one.names]
    assert (value.constant, value.place.line, value.place.text) == (2, 2, "2")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"def f(:\n", ":1 is not valid Python (invalid syntax); repair that line"),
        (b"x = 1\nprint 'a'\n", ":2 is written for Python 2"),
        (b"try:\n    x\nexcept E, e:\n    pass\n", ":3 is written for Python 2"),
        (b"x = " + b"(" * 1000 + b"1" + b")" * 1000, ":1 is not valid Python (too many nested parentheses)"),
        (b"x = " + b"+".join([b"a"] * 50_000), "is nested too deeply to be read"),
        (b"x = 1\n" + b"\n" * 300_000 + b"def f(:\n", ":300002 is not valid Python"),  # hours, if searched twice
        (b"if 1:\n\tx = 1\n        y = 2\n", ":3 is not valid Python"),
    ],
)
def test_what_is_no_python_is_said_in_one_sentence(content, sentence, tmp_path):
    with pytest.raises(SourceError) as raised:
        read_program(written(tmp_path, content))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"gone\.py could not be read"):
        read_program(tmp_path / "gone.py")


def test_an_empty_file_is_a_program_without_values(tmp_path):
    assert read_program(written(tmp_path, b"")).values == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cells": [1]}', b'{"cells": "abc"}', b"[" * 100_000])
def test_what_is_no_notebook_is_said_in_one_sentence(content, tmp_path):
    with pytest.raises(SourceError, match="is not a notebook"):
        read_program(written(tmp_path, content, "book.ipynb"))


def notebook(*sources):
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": source} for source in sources]})


def test_cells_are_one_program_and_places_name_the_cell(tmp_path):
    path = written(tmp_path, notebook("x = 3", ["z = 1\n", "y = x\n", "w = x + 1"]), "book.ipynb")
    (value,) = read_program(path).of("add")
    assert (value.place.file, value.place.line) == (f"{path}#cell2", 3)


def test_magics_other_languages_and_broken_cells_are_left_out(tmp_path):
    cells = ["%matplotlib inline\n!pip install a\nx = 3", "%%bash\nls", "def f(", "%%time\ny = x", "?help"]
    program = read_program(written(tmp_path, notebook(*cells), "book.ipynb"))
    (value,) = [one for one in program.values if "y" in one.names]
    assert value.constant == 3


def test_an_old_notebook_keeps_its_cells_in_worksheets(tmp_path):
    document = {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1\n", "y = 2"]}]}]}
    program = read_program(written(tmp_path, json.dumps(document), "book.ipynb"))
    assert [one.constant for one in program.values] == [1, 2]


def test_text_cells_are_no_part_of_the_program(tmp_path):
    document = {"cells": [{"cell_type": "markdown", "source": "x = 1"}, {"cell_type": "code"}]}
    assert read_program(written(tmp_path, json.dumps(document), "book.ipynb")).values == []


def test_scripts_below_a_folder_are_found_in_order_and_installed_ones_are_not(tmp_path):
    for name in ("b.py", "a.ipynb", "c.txt", ".hidden.py", "deep/d.py", "venv/e.py", "__pycache__/f.py", ".git/g.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "gone.py")
    found = [str(path.relative_to(tmp_path)) for path in scripts_in(tmp_path)]
    assert found == ["a.ipynb", "b.py", "deep/d.py", "nowhere.py"]  # a broken link is named by whoever reads it


def test_a_place_shows_a_long_text_cut_and_on_one_line(read):
    program = read("y = f(\n    'a',\n    '" + "b" * 200 + "',\n)")
    (value,) = program.of("call")
    assert value.place.text.startswith("f( 'a', 'bbb")
    assert len(value.place.text) == 90


def test_a_place_counts_characters_of_other_alphabets(read):
    (value,) = read("a = ('\u00e9\u00e9', b - c)").of("sub")
    assert value.place.text == "b - c"


def test_a_large_file_is_refused(tmp_path):
    path = written(tmp_path, b"#" * 8_000_001)
    with pytest.raises(SourceError, match="larger than 8 MB"):
        read_module(path, "script")

"""Long literal containers: cut short before they are parsed, with every other line and column where it was."""

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest

from assay.doctor.catalogue import by_code, catalogue
from assay.doctor.inputs import read_reports
from assay.programs.read.literals import KEPT, count_lexemes, shorten
from assay.programs.read.script import read_program
from assay.programs.read.text import MOST_LEXEMES, ORDINARY_LEXEMES, SourceError

MANY = 40_000  # more than an ordinary text holds
SICK = by_code("RAT04").scripts.sick
LITERALS = {
    "numbers": ("[", "1.5e-3, ", "]"),
    "signed numbers on lines": ("(\n", "-7,\n", ")"),
    "texts": ("[", "'it\\'s', ", "]"),
    "texts with brackets": ("{", '"[1, (2", ', "}"),
    "joined texts": ("[", "'a' \"b\", ", "]"),
    "entries": ("{", "'k': 1, ", "}"),
    "rows": ("[", "[1, 2, 3], ", "]"),
    "records": ("[", '{"prompt": "a, b", "answer": [1, (2, 3)]},\n', "]"),
    "arguments": ("f(", "1, ", ")"),
    "commented": ("[\n", "1,  # one\n", "]"),
    "constants": ("[", "None, ", "]"),
    "rows within rows": ("[", "{'in': [[[[[1, 2], [3]]]], {'a': ({4}, None)}]}, ", "]"),
    "long texts": ("[", '"""it\'s\n1, 2""", ', "]"),
    "commented with quotes": ("[\n", "1,  # it's one\n", "]"),
    "bytes": ("[", "b'\\x00', ", "]"),
}


def written(folder, text, name="script.py"):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(("begin", "item", "end"), LITERALS.values(), ids=LITERALS)
def test_a_long_container_keeps_its_first_items_and_every_place_around_it(begin, item, end):
    text = f"before = 1\nx = {begin}{item * 3000}{end}; after = 2\nlast = 3\n"
    short = shorten(text, 256)
    assert count_lexemes(short) < 50 * KEPT < count_lexemes(text)
    assert short.count(item.rstrip()) >= KEPT
    places = [[(node.lineno, node.col_offset) for node in ast.parse(one).body] for one in (text, short)]
    assert places[0] == places[1]


@pytest.mark.parametrize(
    "text",
    [
        "x = [" + "f(1), " * 3000 + "]",
        "x = [" + "a, " * 3000 + "]",
        "x = [" + "1, " * 200 + "]",
        "x = '" + "1, " * 3000 + "'",
        "# " + "1, " * 3000 + "\nx = 1",
        "x = [  # " + "1, " * 3000 + "\n1, 2]",
        '"""' + "'a', " * 3000 + '"""',
        "x = 1  # it's\ny = '" + "1, " * 3000 + "'  # it's",
        "x = 1, 2",
        "",
    ],
    ids=[
        "calls",
        "names",
        "few",
        "a text",
        "a comment",
        "a comment in a list",
        "a docstring",
        "a text between quotes",
        "a pair",
        "nothing",
    ],
)
def test_what_is_not_a_long_literal_means_what_it_meant(text):
    assert shorten(text, 256) == text


def test_a_cut_list_claims_neither_its_length_nor_its_elements(tmp_path):
    text = f"x = [{'1, ' * MANY}2]\ny = x[5]\nz = {{{''.join(f'{key}: 7, ' for key in range(MANY))}}}\n"
    values = {name: one for one in read_program(written(tmp_path, text)).values for name in one.names}
    assert not values["x"].thing.exact
    assert len(values["x"].thing.elements) == KEPT + 1
    assert "y" not in values or values["y"].constant != 2
    assert values["z"].thing.entries[3].constant == 7
    assert MANY - 5 not in values["z"].thing.entries
    assert not values["z"].thing.rest


@pytest.mark.parametrize("begin", ["", "import data\n"], ids=["in the script", "in a file beside it"])
def test_what_stands_behind_a_long_list_is_read(begin, tmp_path):
    data = f"questions = [{'1, ' * 100_000}]\n"
    written(tmp_path, data, "data.py")
    path = written(tmp_path, (begin or data) + SICK)
    (report,) = read_reports([path], catalogue(), None)
    (word,) = report.diagnosis.findings
    line = SICK[: SICK.index("torch.exp(old - new)")].count("\n") + 2
    assert (word.code, word.verdict.places[0].line, report.diagnosis.notes) == ("RAT04", line, ())


def test_a_cut_that_does_not_parse_is_not_made(tmp_path):
    text = f"match x:\n    case ({'1, ' * MANY}2):\n        found = 5\n"  # no star may stand there
    assert any("found" in value.names for value in read_program(written(tmp_path, text)).values)


def test_an_error_is_named_by_its_line_behind_a_long_list(tmp_path):
    text = "x = [\n" + "1,\n" * MANY + "]\ndef f(:\n"
    with pytest.raises(SourceError, match=f"script.py:{MANY + 3} is not valid Python"):
        read_program(written(tmp_path, text))


def test_more_code_than_is_read_is_one_sentence(tmp_path):
    with pytest.raises(SourceError, match=r"script.py holds more than 600,000 words and signs"):
        read_program(written(tmp_path, "x=1\n" * (MOST_LEXEMES // 3 + 1)))


def test_many_lists_of_middling_length_are_cut_shorter(tmp_path):
    text = "".join(f"a{number} = [{'1, ' * 200}]\n" for number in range(2000))
    assert count_lexemes(text) > MOST_LEXEMES
    assert len(read_program(written(tmp_path, text)).of("listing")) > 1000


def test_random_literals_parse_as_before_or_are_cut():
    chosen = random.Random(0)
    atoms = ("1", "-2.5", "'a'", '"b, c"', "None", "1e+5", "0x_ff", "'''d'''", "x", "f(1)", "*y", "b'e'", "'f' 'g'")
    for _ in range(300):
        items = [chosen.choice(atoms) for _ in range(chosen.randint(1, 5))] * chosen.randint(1, 40)
        separator = chosen.choice((", ", ",\n", " , ", ",  # c\n"))
        text = f"x = [{separator.join(items)}\n]; y = 1\n"
        short = shorten(text, 32)
        assert ast.parse(short).body[-1].lineno == ast.parse(text).body[-1].lineno
        assert ast.parse(short).body[-1].col_offset == ast.parse(text).body[-1].col_offset


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read there")
def test_two_million_numbers_take_little_memory(tmp_path):
    path = written(tmp_path, f"x = [{'1, ' * 2_000_000}]\n")
    code = (  # not getrusage: its peak is that of the parent too
        "import re, sys\nfrom pathlib import Path\nfrom assay.programs.read.script import read_program\n"
        "read_program(Path(sys.argv[1]))\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150_000  # kB


@pytest.mark.parametrize(
    "text",
    [
        f"x = '{'0123456789abcdef' * 60_000}'",
        f"x = 0x{'0123456789abcdef' * 60_000}",
        "x = (\n" + "'0123456789abcdef'\n" * 60_000 + ")",
        '""" \\' * 200_000,
        "[" * 100_000 + "]" * 100_000,
        "[1,\n" * 100_000,
    ],
    ids=["a text", "a number", "joined texts", "quotes", "brackets", "open rows"],
)
def test_what_is_not_cut_is_not_searched_again_and_again(text):
    code = "import sys\nfrom assay.programs.read.literals import shorten\nassert shorten(sys.stdin.read(), 256)"
    text = f"y = [{'1, ' * MANY}]\n{text}\n"
    subprocess.run([sys.executable, "-c", code], input=text, text=True, check=True, timeout=120)  # a second; else hours


def test_an_ordinary_script_is_read_whole(read):
    assert count_lexemes(SICK) < ORDINARY_LEXEMES
    (value,) = read("x = [" + "1, " * 5000 + "]").of("listing")
    assert len(value.thing.elements) == 5000

"""Files that only Python 3.12 reads run in the copy under older versions, line by line the same."""

import pytest

from assay.rehearsal.newer_syntax import _rewritten, as_older_python, parses


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('f"{row["name"]}!"', "Ada!"),
        ("f'{row['name']:>5}|{{}}'", "  Ada|{}"),
        ('f"{", ".join(f"{key}={row[key]}" for key in row)} done"', "name=Ada done"),
        ("""f"it's {row['name']}" + "plain" + 'f"{x}"'""", """it's Adaplainf"{x}\""""),
    ],
)
def test_an_f_string_that_holds_its_own_quotes_reads_the_same(text, value):
    rewritten = _rewritten(f"# a comment with 'one quote\nresult = {text}\nlast = 3\n")
    assert parses(rewritten)
    names = {"row": {"name": "Ada"}}
    exec(rewritten, names)
    assert (names["result"], names["last"], rewritten.count("\n")) == (value, 3, 3)


def test_a_text_that_parses_and_one_that_never_will_stay_as_they_are():
    assert as_older_python("x = f\"{row['name']}\"\n") == "x = f\"{row['name']}\"\n"
    assert as_older_python("def broken(:\n") == "def broken(:\n"

"""Small programs as text, and the value that a name has in them at the end."""

import textwrap
from collections.abc import Callable

import pytest

from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.script import read_program

Read = Callable[..., Program]


@pytest.fixture
def read(tmp_path) -> Read:
    """read(text, other="...") reads a script, with other.py next to it."""

    def reader(text: str, **siblings: str) -> Program:
        for name, sibling in siblings.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(sibling))
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        return read_program(tmp_path / "script.py")

    return reader


@pytest.fixture
def value_of(read) -> Callable[..., Value]:
    """value_of(text): what `y` is bound to last."""

    def find(text: str, **siblings: str) -> Value:
        program = read(text, **siblings)
        return [value for value in program.values if "y" in value.names][-1]

    return find

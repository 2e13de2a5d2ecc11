"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for room in ("assay", "proof", "benchmarks")
    for path in sorted((ROOT / room).rglob("*.py"))
    if "proof/scripts" not in path.as_posix() and ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    if name.startswith(("assay.llama.kernels", "assay.llama.cuda")):
        pytest.importorskip("triton")  # which has no wheels for some platforms
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0

"""The tests of assay/grpo.py are tested: each mutant of its source must be noticed by one of them.

A mutant counts as noticed only if a hand-worked or invariance test fails on a comparison. One that merely breaks
(NameError, TypeError, ...) does not, nor does one caught by TRL's numbers alone: those tests may be skipped.
"""

import ast
import importlib.util
import itertools
import runpy
import sys
import types
from pathlib import Path

import pytest

import assay.grpo

SOURCE = Path(assay.grpo.__file__).read_text(encoding="utf-8")
HERE = Path(__file__).parent
MUTANTS = {
    name: mutant
    for part in ("terms", "loss")
    for name, mutant in runpy.run_path(str(HERE / f"mutants_of_the_{part}.py"))["MUTANTS"].items()
}
TESTS = ("test_terms", "test_facts", "test_loss", "test_invariances", "test_advantages")


def load_tests(name):
    spec = importlib.util.spec_from_file_location(f"mutant_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases_of(module):
    """(name, call) for every test function of the module, once for each combination of its parameters."""
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        marks = [mark.args for mark in getattr(function, "pytestmark", ())]
        for values in itertools.product(*(list(mark[1]) for mark in marks)):
            arguments = {}
            for (names, _), value in zip(marks, values, strict=True):
                arguments |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
            yield name, lambda function=function, arguments=arguments: function(**arguments)


MODULES = [load_tests(name) for name in TESTS]
CASES = [(module, name, call) for module in MODULES for name, call in cases_of(module)]


def load_grpo(source):
    module = types.ModuleType("mutated_grpo")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(source, "mutated_grpo.py", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def first_failure(module, cases=CASES):
    """The name of the first test that fails on a comparison, and what else went wrong until then."""
    crashes = []
    for tests, name, call in cases:
        tests.grpo = module
        try:
            call()
        except (AssertionError, pytest.fail.Exception):
            return name, crashes
        except Exception as error:
            crashes.append(f"{name}: {type(error).__name__}: {error}")
    return None, crashes


def test_the_source_as_it_is_passes_every_case_in_this_harness():
    assert len(CASES) > 300
    assert first_failure(load_grpo(SOURCE)) == (None, [])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_notices(name):
    original, mutated = MUTANTS[name]
    assert SOURCE.count(original) == 1, f"occurs {SOURCE.count(original)} times in grpo.py: {original!r}"
    about_advantages = SOURCE.index(original) < SOURCE.index("def token_logprobs")
    likely_first = CASES[::-1] if about_advantages else CASES
    noticed_by, crashes = first_failure(load_grpo(SOURCE.replace(original, mutated)), likely_first)
    assert noticed_by, f"no test fails; crashes: {crashes[:3]}"


def test_every_statement_of_the_math_has_a_mutant():
    mutated_lines = set()
    for original, _ in MUTANTS.values():
        first = SOURCE.count("\n", 0, SOURCE.index(original)) + 1
        mutated_lines |= set(range(first, first + original.count("\n") + 1))
    uncovered = [
        ast.unparse(statement)
        for function in ast.walk(ast.parse(SOURCE))
        if isinstance(function, ast.FunctionDef)
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign | ast.Return)
        and not mutated_lines & set(range(statement.lineno, statement.end_lineno + 1))
    ]
    assert uncovered == ["groups, size, steps = step_rewards_PGS.shape", "chosen = OBJECTIVES[settings.objective]"]

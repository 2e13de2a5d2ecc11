"""Expressions --> values: the operation, its arguments, and the constant where the text says it."""

import pytest

from assay.programs.graph import UNKNOWN


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("y = 3", 3),
        ("y = None", None),
        ("y = 2 + 3", 5),
        ("y = 2 - 3", -1),
        ("y = 2 * 3", 6),
        ("y = 3 / 2", 1.5),
        ("y = 7 // 2", 3),
        ("y = 7 % 4", 3),
        ("y = 2 ** 5", 32),
        ("y = -4", -4),
        ("y = +4", 4),
        ("y = not 0", True),
        ("y = 1 < 2", True),
        ("y = 2 <= 1", False),
        ("y = 2 > 1", True),
        ("y = 2 >= 3", False),
        ("y = 'a' == 'a'", True),
        ("y = 'a' != 'a'", False),
        ("y = None is None", True),
        ("y = None is not None", False),
        ("y = 3 is None", False),
        ("y = 1 if True else 2", 1),
        ("y = 1 if False else 2", 2),
        ("y = 0 and f()", 0),
        ("y = 1 and 2", 2),
        ("y = 0 or 5", 5),
        ("y = (x := 7)", 7),
        ("y = [4, 5][1]", 5),
        ("y = (4, 5)[-1]", 5),
        ("y = {'a': 1, 'b': 2}['b']", 2),
        ("y = {**{'a': 1}}['a']", 1),
        ("y = [*[1, 2], 3][2]", 3),
        ("y = ([1] + [2, 3])[1]", 2),
        ("y = len([1, 2])", 2),
        ("y = float(2)", 2.0),
        ("y = int(2.9)", 2),
        ("y = bool(3)", True),
        ("y = min(3, 2)", 2),
        ("y = max(3, 2)", 3),
        ("y = dict(a=1)['a']", 1),
        ("y = {'a': 1}.get('a')", 1),
        ("y = (lambda a, b=2: a + b)(1)", 3),
        ("import torch\ny = torch.tensor(0.5)", 0.5),
        ("import torch\ny = torch.tensor(0.5).item()", 0.5),
    ],
)
def test_a_constant_is_computed(text, constant, value_of):
    value = value_of(text)
    assert value.constant == constant
    assert type(value.constant) is type(constant)


@pytest.mark.parametrize(
    "text",
    [
        "y = a + 1",
        "y = 9 ** 9 ** 9",
        "y = 10 ** 65",
        "y = 1 / 0",
        "y = 1 // 0",
        "y = 1 % 0",
        "y = 0 ** -1",
        "y = (-8) ** 0.5",
        "y = 'a' * 3",
        "y = 'a' + 'b'",
        "y = 1e10 * 2",
        "y = a is None",
        "y = len(a)",
        "y = len([b for b in a])",
        "y = int(float('inf'))",
        "y = 1 if a else 2",
        "y = [b for b in a][0]",
        "y = {a: 1}['b']",
    ],
)
def test_what_the_text_does_not_say_is_unknown(text, value_of):
    assert value_of(text).constant is UNKNOWN


@pytest.mark.parametrize(
    ("text", "op", "names"),
    [
        ("y = a + b", "add", {"input", "other"}),
        ("y = a @ b", "matmul", {"input", "other"}),
        ("y = a ** b", "pow", {"input", "exponent"}),
        ("y = a & b", "logical_and", {"input", "other"}),
        ("y = a | b", "logical_or", {"input", "other"}),
        ("y = ~a", "logical_not", {"input"}),
        ("y = -a", "neg", {"input"}),
        ("y = a < b < c", "and", {"0", "1"}),
        ("y = a and b", "and", {"0", "1"}),
        ("y = a or b", "phi", {"0", "1"}),
        ("y = a in b", "in", {"input", "other"}),
        ("y = f'{a} is {b}'", "string", {"0", "1"}),
        ("def g(a):\n    y = a[1:, None]", "index", {"input", "0", "1"}),
        ("def g(a):\n    y = a.b", "attribute", {"input"}),
        ("def g(a):\n    y = a['b']", "index", {"input", "0"}),
        ("def g(a):\n    y = a(1, b=2)", "call", {"callee", "0", "b"}),
        ("def g(a):\n    y = a.frobnicate(1)", "method", {"input", "1"}),
        ("def g(a):\n    y = a.softmax(-1)", "softmax", {"input", "dim"}),
        ("import torch.nn.functional as F\ny = F.softmax(a, dim=-1)", "softmax", {"input", "dim"}),
        ("import torch\ny = torch.clip(a, max=2)", "clamp", {"input", "max"}),
        ("import torch\ny = torch.min(a, b)", "minimum", {"input", "other"}),
        ("import torch\ny = torch.min(a, 1)", "min", {"input", "dim"}),
        ("import numpy as np\ny = np.std(a, ddof=1)", "std", {"input", "correction"}),
        ("def g(a):\n    y = a.max(b)", "maximum", {"input", "other"}),
        ("import torch\ny = torch.frobnicate(a)", "call", {"0"}),
        ("y = 1 if a else b", "phi", {"0", "1"}),
        ("async def g(a):\n    y = await a", "parameter", set()),
        ("y = [1] * a", "list_repeat", {"input", "other"}),
        ("y = {1, 2}", "listing", {"0", "1"}),
        ("y = {a: 1 for a in b}", "table", {"0"}),
    ],
)
def test_an_operation_has_one_name_and_its_arguments_theirs(text, op, names, value_of):
    value = value_of(text)
    assert (value.op, set(value.arguments)) == (op, names)


def test_an_attribute_that_nobody_sets_is_one_value(read):
    program = read("def g(a):\n    y = a.b\n    z = a.b\n    return y + z")
    (total,) = program.of("add")
    assert total.arguments["input"] is total.arguments["other"]


def test_an_attribute_that_is_set_is_what_was_set(value_of):
    assert value_of("def g(a):\n    a.b = 3\n    y = a.b").constant == 3


def test_a_key_that_is_set_is_what_was_set(value_of):
    assert value_of("def g(a):\n    a['b'] = 3\n    y = a['b']").constant == 3


def test_what_a_user_may_set_decides_no_branch(value_of):
    text = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--fast", action="store_true")
        args = parser.parse_args()
        y = 1 if args.fast else 2
    """
    assert value_of(text).op == "phi"


def test_a_comprehension_keeps_its_names(value_of):
    assert value_of("a = 3\nb = [a for a in c]\ny = a").constant == 3


def test_rows_that_are_repeated_each_or_as_a_whole_are_told_apart(read):
    program = read("a = [x for x in xs for _ in range(4)]\nb = [x for _ in range(4) for x in xs]")
    assert [one.name for one in program.of("listing")] == ["interleaved", "tiled"]


def test_an_operand_knows_where_it_is_written(read):
    (value,) = read("a = f()\nb = a   -  g()").of("sub")
    assert (value.place_of("other").column, value.arguments["input"].place.line) == (11, 1)


def test_an_argument_knows_where_it_is_written(read):
    (value,) = read("import torch\na = f()\nb = torch.exp( a)").of("exp")
    assert value.place_of("input").column == 15

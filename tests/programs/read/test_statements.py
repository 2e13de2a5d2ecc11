"""Statements --> what names are bound to after them, and the circumstances of what is made in them."""

import pytest

from assay.programs.graph import UNKNOWN


def constants(value):
    """The constants that meet in a value, in order."""
    return [one.constant for one in value.arguments.values()] if value.op == "phi" else [value.constant]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if a:\n    x = 1\nelse:\n    x = 2\ny = x", [1, 2]),
        ("x = 1\nif a:\n    x = 2\ny = x", [2, 1]),
        ("if True:\n    x = 1\nelse:\n    x = 2\ny = x", [1]),
        ("if a:\n    x = 1\nelif b:\n    x = 2\nelse:\n    x = 3\ny = x", [1, UNKNOWN]),
        ("if a:\n    x = 1\nelse:\n    raise E\ny = x", [1]),
        ("x = 1\nif a:\n    x = 2\n    raise E\ny = x", [1]),
        ("if a:\n    x = 5\nelse:\n    x = 5\ny = x", [5]),
        ("if a:\n    x = 1\ny = x", [1]),
        ("x = 1\nfor i in b:\n    x = 2\ny = x", [2]),
        ("x = 1\nfor i in b:\n    y = x\n    x = 2", [1, 2]),
        ("x = 1\nwhile a:\n    if b:\n        x = 2\n        break\n    x = 3\ny = x", [3, 2]),
        ("x = 1\nfor i in b:\n    if c:\n        continue\n    x = 3\ny = x", [3, UNKNOWN]),
        ("for i in b:\n    pass\nelse:\n    y = 1", [1]),
        ("try:\n    x = 1\nexcept E:\n    x = 2\ny = x", [1, 2]),
        ("try:\n    x = 1\nexcept E:\n    raise\ny = x", [1]),
        ("try:\n    f()\nfinally:\n    y = 1", [1]),
        ("try:\n    f()\nexcept E:\n    x = 1\nelse:\n    x = 2\ny = x", [2, 1]),
        ("x = 0\nmatch a:\n    case 1:\n        x = 1\n    case _:\n        x = 2\ny = x", [1, 2, 0]),
        ("with a as b:\n    y = 1", [1]),
        ("y: int = 3", [3]),
        ("x = 1\nx += 2\ny = x", [3]),
        ("x = [1]\nx += [2]\ny = x[0]", [1, 2]),
        ("a = b = 4\ny = a", [4]),
        ("a, b = 1, 2\ny = b", [2]),
        ("a, *b, c = 1, 2, 3, 4\ny = b[1]", [3]),
        ("a, *b, c = 1, 2, 3, 4\ny = c", [4]),
        ("(a, b), c = (1, 2), 3\ny = b", [2]),
        ("x = 1\ndef f():\n    global x\n    x = 2\nf()\ny = x", [2]),
        ("def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = 2\n    g()\n    return x\ny = f()", [2]),
        ("x = {}\nx['a'] = 3\ny = x['a']", [3]),
        ("x = []\nx.append(3)\ny = x[0]", [3]),
        ("x = [1, 2]\nfor y in x:\n    pass", [1, 2]),
        ("for a, y in zip([1], [2]):\n    pass", [2]),
        ("for a, y in enumerate([7]):\n    pass", [7]),
        ("for a, y in {'k': 7}.items():\n    pass", [7]),
        ("if __name__ == '__main__':\n    y = 1\nelse:\n    y = 2", [1]),
    ],
)
def test_a_name_is_bound_to(text, expected, value_of):
    assert constants(value_of(text)) == expected


def test_a_deleted_name_is_not_known_any_more(value_of):
    assert value_of("x = 1\ndel x\ny = x").op == "library"


def test_a_name_that_one_branch_deletes_may_still_be_there(value_of):
    assert value_of("x = 1\nif a:\n    del x\ny = x").constant == 1


def test_attributes_of_objects_meet_after_a_branch(value_of):
    text = "class A: pass\na = A()\na.b = 1\nif c:\n    a.b = 2\ny = a.b"
    assert constants(value_of(text)) == [2, 1]


def test_an_attribute_may_come_from_the_turn_before(value_of):
    text = "class A: pass\na = A()\na.b = 1\nfor i in c:\n    y = a.b\n    a.b = 2"
    assert constants(value_of(text)) == [1, 2]


def test_a_value_of_a_loop_may_be_made_of_itself(read):
    program = read("x = 1\nfor i in b:\n    x = x + 1")
    (total,) = program.of("add")
    assert total.arguments["input"].arguments["1"] is total


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        ("with torch.no_grad():", "no_grad", True),
        ("with torch.inference_mode():", "no_grad", True),
        ("with torch.enable_grad():", "no_grad", False),
        ("with torch.set_grad_enabled(False):", "no_grad", True),
        ("with torch.set_grad_enabled(True):", "no_grad", False),
        ("with torch.set_grad_enabled(flag):", "grad_unknown", True),
        ("with torch.autocast('cuda'):", "autocast", True),
        ("with torch.autocast('cuda', enabled=False):", "autocast", False),
        ("with model.disable_adapter():", "adapter_off", True),
        ("with (torch.no_grad() if flag else nullcontext()):", "grad_unknown", True),
        ("try:", "handled", True),
    ],
)
def test_circumstances_hold_inside(line, field, expected, read):
    after = "except ValueError:\n    pass\n" if line == "try:" else ""
    program = read(f"import torch\n{line}\n    b = torch.exp(a)\n{after}c = torch.exp(a)")
    inside, outside = program.of("exp")
    assert getattr(inside.context, field) is expected
    assert getattr(outside.context, field) is False


def test_an_early_return_guards_what_follows(read):
    program = read("import torch\ndef f(a):\n    if a:\n        return 1\n    return torch.exp(a)")
    (value,) = program.of("exp")
    assert [one.side for one in value.context.branches] == [False]


def test_loops_know_how_often_they_run(read):
    program = read("import torch\nfor i in range(2, 5):\n    for j in a:\n        b = torch.exp(j)")
    (value,) = program.of("exp")
    assert [loop.turns for loop in value.context.loops] == [3, None]


def test_what_is_made_in_a_handler_is_known_to_be(read):
    program = read("import torch\ntry:\n    f()\nexcept E:\n    b = torch.exp(a)\nc = torch.exp(a)")
    assert [one.context.in_handler for one in program.of("exp")] == [True, False]


def test_a_handler_that_raises_swallows_nothing(read):
    program = read("import torch\ntry:\n    b = torch.exp(a)\nexcept E:\n    raise")
    assert program.of("exp")[0].context.handled is False


def test_an_element_that_is_assigned_makes_a_new_tensor(value_of):
    value = value_of("import torch\nx = torch.ones(3)\nx[0] = 2\ny = x")
    assert (value.op, value.arguments["value"].constant) == ("setitem", 2)


def test_an_operation_in_place_changes_the_name(value_of):
    assert value_of("import torch\nx = f()\nx.mul_(3)\ny = x").op == "mul"

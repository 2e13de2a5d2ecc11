"""Calls: functions and classes of the program are walked through, with their arguments in place."""

import pytest

from assay.programs.read import calls, interpreter


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("def f(a, b=2): return b\ny = f(1)", 2),
        ("def f(a, b=2): return b\ny = f(1, 3)", 3),
        ("def f(a, *, b=2): return b\ny = f(1, b=4)", 4),
        ("def f(a, /, b): return a\ny = f(1, b=4)", 1),
        ("def f(*a): return a[1]\ny = f(1, 5)", 5),
        ("def f(**a): return a['k']\ny = f(k=6)", 6),
        ("def f(a, b): return b\nx = (1, 7)\ny = f(*x)", 7),
        ("def f(a, b): return b\nx = {'a': 1, 'b': 8}\ny = f(**x)", 8),
        ("def f():\n    return 1\n    return 2\ny = f()", 1),
        ("def f(): pass\ny = f()", None),
        ("def f(): return 1, 2\na, y = f()", 2),
        ("def f():\n    x = 3\n    def g(): return x\n    return g\ny = f()()", 3),
        ("from functools import partial\ndef f(a, b): return b\ny = partial(f, 1)(9)", 9),
        ("from functools import partial\ndef f(a, b): return b\ny = partial(f, b=9)(1)", 9),
        ("async def f(): return 3\nasync def g():\n    y = await f()", 3),
        ("class A:\n    def __init__(self, b): self.b = b\ny = A(4).b", 4),
        ("class A:\n    c = 4\ny = A().c", 4),
        ("class A:\n    c = 4\ny = A.c", 4),
        ("class A:\n    @property\n    def c(self): return 5\ny = A().c", 5),
        ("class A:\n    @staticmethod\n    def c(a): return a\ny = A.c(6)", 6),
        ("class A:\n    d = 7\n    @classmethod\n    def c(cls): return cls.d\ny = A.c()", 7),
        ("class A:\n    def f(self): return 1\nclass B(A):\n    def f(self): return super().f()\ny = B().f()", 1),
        ("class A:\n    def f(self): return 1\nclass B(A):\n    def f(self): return 2\ny = B().f()", 2),
        ("class A:\n    def f(self): return 1\nclass B(A): pass\ny = B().f()", 1),
        ("class A:\n    def __call__(self, a): return a\ny = A()(8)", 8),
        ("class A:\n    def f(self): self.b = 3\na = A()\na.f()\ny = a.b", 3),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\n    b: int = 2\ny = A(1).a", 1),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\n    b: int = 2\ny = A(1).b", 2),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\ny = A(a=3).a", 3),
        ("from typing import NamedTuple\nclass A(NamedTuple):\n    a: int\ny = A(5).a", 5),
        ("from types import SimpleNamespace\ny = SimpleNamespace(a=5).a", 5),
        ("def f():\n    yield 4\nfor y in f():\n    pass", 4),
        ("def f():\n    yield from [4]\nfor y in f():\n    pass", 4),
        ("y = list(map(lambda a: a + 1, [2]))[0]", 3),
        ("class A: pass\na = A()\nsetattr(a, 'b', 3)\ny = getattr(a, 'b')", 3),
        ("import copy\nclass A: pass\na = A()\na.b = 1\nc = copy.deepcopy(a)\na.b = 2\ny = c.b", 1),
        ("d = {}\nd.setdefault('a', 3)\ny = d['a']", 3),
        ("d = {}\nd.update({'a': 3})\ny = d['a']", 3),
        ("d = {}\nd.update(a=3)\ny = d['a']", 3),
        ("from collections import defaultdict\nd = defaultdict(list)\nd['a'].append(3)\ny = d['a'][0]", 3),
    ],
)
def test_a_call_gives(text, constant, value_of):
    assert value_of(text).constant == constant


def test_several_returns_meet(value_of):
    value = value_of("def f(a):\n    if a:\n        return 1\n    return 2\ny = f(b)")
    assert [one.constant for one in value.arguments.values()] == [1, 2]


def test_tuples_that_are_returned_meet_part_by_part(value_of):
    value = value_of("def f(a):\n    if a:\n        return 1, 2\n    return 3, 4\nx, y = f(b)")
    assert [one.constant for one in value.arguments.values()] == [2, 4]


def test_a_function_that_calls_itself_is_entered_once(read):
    program = read("def f(a):\n    return g(a) + 1\ndef g(a):\n    return f(a)\ny = f(3)")
    assert [one.name for one in program.of("call")] == ["f"]


def test_a_function_that_nothing_calls_is_walked_through_with_unknown_arguments(read):
    program = read("import torch\ndef f(a, b=2):\n    return torch.exp(a * b)")
    (value,) = program.of("mul")
    assert (value.arguments["input"].op, value.arguments["input"].name) == ("parameter", "a")
    assert value.arguments["other"].constant == 2


def test_methods_that_nothing_calls_share_one_object(read):
    program = read("class A:\n    def __init__(self): self.b = 3\n    def f(self):\n        y = self.b\n")
    (value,) = [one for one in program.values if "y" in one.names]
    assert value.constant == 3


def test_a_function_that_is_called_is_not_walked_through_again(read):
    program = read("import torch\ndef f(a):\n    return torch.exp(a)\nf(1)")
    assert len(program.of("exp")) == 1


def test_a_value_knows_the_functions_and_the_calls_around_it(read):
    program = read("import torch\ndef f(a):\n    return torch.exp(a)\ndef g(a):\n    return f(a)\ng(1)")
    (value,) = program.of("exp")
    assert value.context.functions == ("g", "f")
    assert [place.line for place in value.context.calls] == [6, 5]


def test_a_decorated_function_runs_without_gradients(read):
    program = read("import torch\n@torch.no_grad()\ndef f(a):\n    return torch.exp(a)\nf(1)\ntorch.exp(2)")
    assert [one.context.no_grad for one in program.of("exp")] == [True, False]


def test_a_call_of_a_network_of_the_program_is_a_forward(read):
    text = """
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
            def forward(self, x):
                return torch.exp(self.layer(x))
        net = Net()
        net(1)
        net.forward(1)
    """
    outer = [one for one in read(text).of("forward") if "output" in one.arguments]
    assert [one.arguments["output"].op for one in outer] == ["exp", "exp"]
    assert [one.arguments["given_x"].constant for one in outer] == [1, 1]


def test_a_function_that_makes_very_many_values_is_not_walked_through_for_ever(read, monkeypatch):
    monkeypatch.setattr(calls, "MOST_OF_FUNCTION", 10)
    program = read("import torch\ndef f(a):\n    return torch.exp(a) + 1 + 2 + 3\n" + "f(1)\n" * 50)
    assert 1 < len(program.of("exp")) < 6
    assert len(program.of("call")) > 40


def test_a_program_that_makes_too_many_values_is_read_in_part_and_says_so(read, monkeypatch):
    monkeypatch.setattr(interpreter, "MOST_VALUES", 20)
    program = read("x = 1\n" * 50)
    assert len(program.values) == 21
    assert "read in part" in program.notes[0]

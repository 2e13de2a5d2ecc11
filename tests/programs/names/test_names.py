"""Names that do not exist are found, and whatever Python allows is left alone."""

import json

import pytest

from assay.programs.names.faults import faults
from assay.programs.names.without_effect import lines_without_effect
from assay.programs.read.script import read_program


def messages(tmp_path, text, **others):
    for name, other in others.items():
        (tmp_path / f"{name}.py").write_text(other)
    path = tmp_path / "script.py"
    path.write_text(text)
    return [fault.message for fault in faults(read_program(path)) if fault.sure]


SICK = {
    "a name of another function": (
        "def rollout(prompts):\n return prompts\n\ndef train():\n return [p for p in prompts]\n",
        "`prompts` is not defined: only `rollout` has a name like it",
    ),
    "a name that is bound later": (
        "def f(x):\n y = z + x\n z = 1\n return y + z\n",
        "`z` is read before anything binds it (line 3 does)",
    ),
    "a count that nothing starts": (
        "def f(xs):\n for x in xs:\n  pass\n total += 1\n return total\n",
        "`total` is read before anything binds it (line 4 does)",
    ),
    "a module's name before its line": (
        "print(rate)\nrate = 1\n",
        "`rate` is read before anything binds it (line 2 does)",
    ),
    "a missing argument": (
        "def f(a, b, c=1):\n return a\n\nf(1)\n",
        "`f` is not given `b`",
    ),
    "an argument too many": (
        "def f(a):\n return a\n\nf(1, 2)\n",
        "`f` takes at most 1 positional arguments and is given 2",
    ),
    "an unknown keyword": ("def f(a):\n return a\n\nf(a=1, b=2)\n", "`f` has no parameter `b` (it has a)"),
    "an argument given twice": ("def f(a, b=1):\n return a\n\nf(1, a=2)\n", "`f` is given `a` twice"),
    "a method": (
        "class A:\n def __init__(self):\n  pass\n def f(self, a):\n  return a\n def g(self):\n  return self.f()\n",
        "`self.f` is not given `a`",
    ),
    "a method of an object": (
        "class A:\n def f(self, a):\n  return a\n\nthing = A()\nthing.f(1, 2)\n",
        "`thing.f` takes at most 1 positional arguments and is given 2",
    ),
    "a constructor": (
        "class A:\n def __init__(self, a):\n  self.a = a\n\nA()\n",
        "`A` is not given `a`",
    ),
    "a field of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n a: int\n b: int = 1\n\nA(a=1, c=2)\n",
        "`A` has no parameter `c` (it has a, b)",
    ),
    "an attribute of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n a: int = 1\n\ndef main(a: A):\n print(a.rate)\n",
        "nothing sets `a.rate`: A has no such attribute",
    ),
    "an attribute that nothing sets": (
        "class A:\n def __init__(self):\n  self.a = 1\n def f(self):\n  return self.aa\n",
        "nothing sets `self.aa`: A has no such attribute",
    ),
    "a method that is not there": (
        "class A:\n def __init__(self):\n  self.a = 1\n def f(self):\n  return self.g()\n",
        "nothing sets `self.g`: A has no such attribute",
    ),
    "another number of values": (
        "def f(a):\n if a:\n  return 1, 2\n return 3, 4\n\nx, y, z = f(1)\n",
        "`f` returns 2 values and 3 are unpacked",
    ),
    "torch": (
        "import torch\nwith torch.no_grade():\n pass\n",
        "`torch.no_grade` does not exist (torch.no_grad does)",
    ),
    "torch.nn": ("from torch import nn\nnn.softmax(1)\n", "`torch.nn.softmax` does not exist (torch.nn.Softmax does)"),
    "torch.nn.functional": (
        "import torch.nn.functional as F\nF.log_softmaxx(1)\n",
        "`torch.nn.functional.log_softmaxx` does not exist (torch.nn.functional.log_softmax does)",
    ),
    "vLLM and a network": (
        "from vllm import LLM\ndef f(model):\n model.train()\n return LLM(model=model)\n",
        "vLLM's `LLM` takes the name or the folder of a model and is given a network (`model`)",
    ),
    "an import of transformers": (
        "from transformers import AutoModelForCasualLM\n",
        "`transformers.AutoModelForCasualLM` does not exist (transformers.AutoModelForCausalLM does)",
    ),
}


@pytest.mark.parametrize("case", SICK)
def test_what_does_not_exist_is_found(case, tmp_path):
    text, message = SICK[case]
    assert messages(tmp_path, text) == [message]


def test_files_of_the_program_are_asked_for_their_names(tmp_path):
    text = "import parts\nfrom parts import scale, stretch\nprint(parts.scale, parts.shrink)\nscale()\n"
    assert messages(tmp_path, text, parts="def scale(x):\n return x\n") == [
        "parts.py does not define `stretch`, which is imported from it",
        "parts.py does not define `shrink`",
        "`scale` is not given `x`",
    ]


def test_a_file_with_the_name_of_a_library_is_not_asked(tmp_path):
    text = "import deepspeed\nprint(deepspeed.zero)\n"
    assert messages(tmp_path, text, deepspeed="def is_there():\n return False\n") == []


WELL = [
    "from vllm import LLM\ndef f(model, name):\n model.train()\n return LLM(model=name), LLM('tiny')\n",
    "import torch\ntorch.compile\ntorch.lstsq\ntorch.npu\ntorch.Tensor.mean\n",
    "from os.path import *\nprint(join('a'))\n",
    "try:\n import numpy as np\nexcept ImportError:\n np = None\nprint(np)\n",
    "try:\n text = unicode\nexcept NameError:\n text = str\n",
    "globals()['x'] = 1\nprint(x)\n",
    "exec('y = 1')\nprint(y)\n",
    "class A:\n size = 3\n half = [_ for _ in range(size)]\n def f(self):\n  return __class__\n",
    "class A:\n def __init__(self):\n  for name in 'ab':\n   setattr(self, name, 1)\n def f(self):\n  return self.a\n",
    "class A:\n def __getattr__(self, name):\n  return 1\n def __init__(self):\n  print(self.b)\n",
    "class A:\n def __init__(self, **words):\n  self.__dict__.update(words)\n def f(self):\n  return self.b\n",
    "import torch.nn as nn\nclass A(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    "  self.register_buffer('mask', None)\n def forward(self, x):\n  return self.mask, self.training, x\n",
    "import torch.nn as nn\nclass A(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    "  self.register_buffer('mask', None)\n  for n in range(2):\n   self.add_module(f'b{n}', nn.Linear(1, 1))\n"
    " def forward(self, x):\n  return self.b0(x)\n",
    "class Plain:\n def __init__(self):\n  self.a = 1\n def f(self):\n  return self.extra()\n"
    "def make(base):\n class Derived(base):\n  def extra(self):\n   return 1\n return Derived\nmake(Plain)().f()\n",
    "class Sized:\n def __init__(self):\n  pass\n def f(self):\n  raise NotImplementedError\n def g(self):\n"
    "  return self.size\n",
    "class A:\n def __init__(self):\n  self.a = 1\n def f(self):\n  return self.b\n\na = A()\na.b = 1\n",
    "class A:\n def __init__(self):\n  self.a = 1\n def f(self):\n  if hasattr(self, 'b'):\n   return self.b\n",
    "class A:\n def f(self, a):\n  return a\n\nclass B(A):\n def f(self, a, b):\n  return self.f(a, b)\n\n"
    "def g(thing: A):\n thing.f(1, 2)\n",
    "import functools\ndef twice(f):\n @functools.wraps(f)\n def g(*a):\n  return f(*a, 1)\n return g\n"
    "@twice\ndef h(a, b):\n return a\nh(1)\n",
    "def f(*a, **b):\n return a\nf(1, 2, c=3)\n",
    "def f(a, b):\n return a\nargs = (1, 2)\nwords = {}\nf(*args)\nf(1, **words)\n",
    "def f(a):\n return a\nif f(1):\n def f(a, b):\n  return b\nf(1, 2)\n",
    "def f(a):\n return a\nf = print\nf(1, 2)\n",
    "def f(a):\n while a:\n  if a > 1:\n   print(b)\n  b = 1\n  a -= 1\n",
    "def f(a):\n if a:\n  b = 1\n if a:\n  print(b)\n",
    "def f(a):\n try:\n  b = a()\n except ValueError:\n  raise\n finally:\n  print(a)\n return b\n",
    "def f():\n def g():\n  return later\n later = 1\n return g()\n",
    "def f():\n global count\n count = 1\ndef g():\n print(count)\n",
    "def f(a):\n if a:\n  return 1, 2\n return None\nx, y, z = f(1)\n",
    "def f(a):\n yield 1, 2\nx, y, z = f(1)\n",
    "x = [y := 3, y + 1]\nprint([z for z in x if (w := z)], w)\n",
    "def f(a):\n match a:\n  case [first, *rest]:\n   return first, rest\n  case {'b': b, **more}:\n"
    "   return b, more\n",
    "from __future__ import annotations\ndef f(a: Unknown) -> Later:\n b: Never\n return a\n",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n from a import B\ndef f(b: 'B'):\n return b\n",
    "def f(a):\n del a\n a = 1\n return a\n",
    "import os\nwith open(__file__) as file, open(os.devnull) as other:\n print(file, other)\n",
    "def f(values):\n for value in values:\n  last = value\n else:\n  print(last)\n return last, value\n",
    "class A:\n def f(self):\n  return A()\n @classmethod\n def g(cls, a):\n  return cls()\nA.g(1)\n",
    "class Node:\n def __new__(cls, a):\n  return object.__new__(cls)\nNode(1)\n",
    "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\nPoint(1, 2).x\n",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n a: int\n b: list = field(default_factory=list)\n"
    "@dataclass\nclass B(A):\n c: int = 1\nB(1, [2], c=3)\n",
]


@pytest.mark.parametrize("number", range(len(WELL)))
def test_what_python_allows_is_left_alone(number, tmp_path):
    assert messages(tmp_path, WELL[number]) == []


def test_a_notebook_may_use_magics(tmp_path):
    cells = [
        {"cell_type": "code", "source": "%pip install torch\nx = 1"},
        {"cell_type": "code", "source": "display(x)"},
    ]
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    assert faults(read_program(path)) == []


def test_a_fault_that_training_does_not_reach_is_marked(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "def train(loss):\n    loss.backward()\n    step(a)\ndef step(x):\n    return y\ndef show():\n    return z\n"
    )
    found = {fault.message: fault.reached for fault in faults(read_program(path))}
    assert found == {"`a` is not defined": True, "`y` is not defined": True, "`z` is not defined": False}


def idle_lines(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    return [idle.place.line for idle in lines_without_effect(read_program(path))]


def test_results_that_nothing_takes_are_found(tmp_path):
    text = (
        "import torch\nimport torch.nn.functional as F\ndef f(x, model, optimizer, text):\n"
        "    x.masked_fill(x > 0, 1)\n"
        "    torch.clamp(x, 0, 1)\n    F.softmax(x, -1)\n    x.detach()\n    text.strip()\n    model.eval\n"
        "    optimizer.step\n    torch.exp(x)\n    x.unsqueeze(-1).squeeze(0)\n    return x\n"
    )
    assert idle_lines(tmp_path, text) == [4, 5, 6, 7, 8, 9, 10, 11, 12]


def test_lines_that_change_something_are_left_alone(tmp_path):
    text = (
        "import torch\nfrom pathlib import Path\ndef f(x, model, seen, log):\n    x.masked_fill_(x > 0, 1)\n"
        "    torch.clamp(x, 0, 1, out=x)\n    model.to('cuda')\n    model.float()\n    model.eval()\n    seen.add(x)\n"
        "    Path('a').replace('b')\n    torch.manual_seed(1)\n    y = x.clamp(0)\n    log.step(1)\n    model.half()\n"
        "    torch.nn.init.zeros_(x)\n    x.requires_grad_()\n    'a text'\n    ...\n    return y\n"
        "class A:\n    def clamp(self):\n        self.a = 1\nthing = A()\nthing.clamp\nprint(thing.a)\n"
    )
    assert idle_lines(tmp_path, text) == []


def test_lines_that_are_tried_or_timed_are_left_alone(tmp_path):
    text = (
        "import torch\nimport pytest\n"
        "class Bar:\n    def squeeze(self):\n        self.n = 1\n"
        "    @property\n    def step(self):\n        self.n += 1\n"
        "def use(bar, x, session):\n    bar.squeeze()\n    bar.step\n    session.detach(x)\n"
        "    with torch.profiler.profile():\n        torch.softmax(x, -1)\n"
        "    with pytest.raises(RuntimeError):\n        x.reshape(7)\n"
        "    try:\n        torch.zeros_like(x)\n    except RuntimeError:\n        return False\n"
        "def warm_up(x):\n    for _ in range(3):\n        torch.cat([x, x])\n"
    )
    assert idle_lines(tmp_path, text) == []


def test_an_environment_with_a_step_does_not_excuse_the_optimizer(tmp_path):
    text = "class Env:\n    def step(self, a):\n        return a\ndef f(optimizer):\n    optimizer.step\n"
    assert idle_lines(tmp_path, text) == [5]


def test_a_long_chain_of_branches_is_read(tmp_path):
    branches = "".join(f"    elif x == {number}:\n        y = {number}\n" for number in range(1, 1200))
    text = f"def f(x, model):\n    if x == 0:\n        y = 0\n{branches}    model.eval\n    return y + z\n"
    assert messages(tmp_path, text) == ["`z` is not defined"]
    assert len(idle_lines(tmp_path, text)) == 1

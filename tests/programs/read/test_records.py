"""Values that go through records, buffers, loaders and lists of tuples are found on the other side."""

import pytest

from assay.programs.walk import ancestors

MADE = "made = torch.exp(x)\nother = torch.log(x)\n"
EXPERIENCE = """
@dataclass
class Experience:
    ids: torch.Tensor
    reward: float = 0.0

    def to(self, device):
        members = {}
        for field in fields(self):
            members[field.name] = getattr(self, field.name).to(device)
        return Experience(**members)
"""
BUFFER = """
class Buffer:
    def __init__(self):
        self.items = []
    def add(self, item):
        self.items.append(item)
    def __getitem__(self, index):
        return self.items[index]
    def __len__(self):
        return len(self.items)
"""
IMPORTS = """
import copy, dataclasses, itertools, random
import torch
from collections import namedtuple
from dataclasses import dataclass, fields, replace
from torch.utils.data import DataLoader
from typing import NamedTuple
"""


@pytest.mark.parametrize(
    "text",
    [
        EXPERIENCE + "y = Experience(made).ids",
        EXPERIENCE + "y = replace(Experience(made), reward=1.0).ids",
        EXPERIENCE + "y = dataclasses.replace(Experience(other), ids=made).ids",
        EXPERIENCE + "y = Experience(made).to('cpu').ids",
        EXPERIENCE + "y = dataclasses.asdict(Experience(made))['ids']",
        EXPERIENCE + "y = vars(Experience(made))['ids']",
        EXPERIENCE + "rows = [Experience(made), Experience(made)]\nfor row in rows:\n    y = row.ids",
        EXPERIENCE + "rows = [Experience(made), Experience(made)]\ny = torch.stack([row.ids for row in rows])",
        EXPERIENCE + "e = Experience(made) if flag else Experience(made, 1.0)\ny = e.to('cpu').ids",
        EXPERIENCE
        + "rows = []\nfor _ in range(3):\n    rows.append(Experience(made))\ny = random.sample(rows, 2)[0].ids",
        "Row = namedtuple('Row', 'a b')\ny = Row(made, other).a",
        "Row = namedtuple('Row', ['a', 'b'])\ny, z = Row(made, other)",
        "Row = namedtuple('Row', 'a b')\ny = Row(other, made)[1]",
        "class Row(NamedTuple):\n    a: torch.Tensor\n    b: torch.Tensor\ny, z = Row(a=made, b=other)",
        "rows = [(made, other), (made, other)]\ny, z = zip(*rows)",
        "rows = []\nfor _ in range(3):\n    rows.append((made, other))\ny, z = map(torch.stack, zip(*rows))",
        "y = random.choice([made, made + 1])",
        "y = list(itertools.chain([made], [made]))[0]",
        "y = next(iter(itertools.islice([made], 1)))",
        BUFFER + "b = Buffer()\nb.add(made)\ny = b[0]",
        BUFFER + "b = Buffer()\nb.add(made)\nfor y in b:\n    pass",
        BUFFER + "b = Buffer()\nb.add(made)\nfor y in DataLoader(b, batch_size=2):\n    pass",
        BUFFER + "b = Buffer()\nb.add((made, other))\n"
        "for y, z in DataLoader(b, collate_fn=lambda rows: [torch.stack(c) for c in zip(*rows)]):\n    pass",
        BUFFER + "def join(rows):\n    return {'ids': torch.stack([row['ids'] for row in rows])}\n"
        "b = Buffer()\nb.add({'ids': made})\nfor batch in DataLoader(b, 2, collate_fn=join):\n    y = batch['ids']",
        "class Rows:\n    def __iter__(self):\n        yield made\nfor y in Rows():\n    pass",
        "class Rows:\n    def __iter__(self): return self\n    def __next__(self): return made\n"
        "for y in Rows():\n    pass",
        "batch = {'a': made, 'b': other}\nmoved = {}\n"
        "for key in ('a', 'b'):\n    moved[key] = batch[key].cuda()\ny = moved['a']",
        "def f():\n    if flag:\n        return {'loss': None}\n    return {'loss': made}\ny = f()['loss']",
        "def f():\n    if flag:\n        return None, None\n    return made, other\ny, z = f()",
        "f = {'a': lambda x: made, 'b': lambda x: made + 1}[name]\ny = f(1)",
        "from torch.utils.checkpoint import checkpoint\ny = checkpoint(lambda x: made, 1, use_reentrant=False)",
    ],
)
def test_what_was_put_in_comes_out(value_of, text):
    assert "exp" in {value.op for value in ancestors(value_of(IMPORTS + MADE + text))}


@pytest.mark.parametrize(
    "text",
    [
        EXPERIENCE + "y = replace(Experience(made), ids=other).ids",
        EXPERIENCE + "y = Experience(other, made).to('cpu').ids",
        "Row = namedtuple('Row', 'a b')\nz, y = Row(made, other)",
        "rows = [(made, other), (made, other)]\nz, y = zip(*rows)",
        BUFFER + "b = Buffer()\nb.add((made, other))\nfor z, y in DataLoader(b):\n    pass",
        "def f():\n    return (made, other) if flag else (made, None)\nz, y = f()",
    ],
)
def test_its_neighbour_does_not(value_of, text):
    ops = {value.op for value in ancestors(value_of(IMPORTS + MADE + text))}
    assert "log" in ops
    assert "exp" not in ops


def test_an_own_optimizer_is_an_optimizer(read):
    program = read("""
        import torch
        class Frugal(torch.optim.AdamW):
            def step(self):
                self.moments = 1
        model = torch.nn.Linear(2, 2)
        optimizer = Frugal(model.parameters(), lr=1e-3)
        model(x).sum().backward()
        optimizer.step()
    """)
    (optimizer,) = program.of("optimizer")
    assert optimizer.setting("lr") == 1e-3
    assert [step.input for step in program.of("step")] == [optimizer]


def test_a_loss_that_is_a_module_is_arithmetic(read):
    program = read("""
        import torch
        class Loss(torch.nn.Module):
            def __init__(self, eps):
                super().__init__()
                self.eps = eps
            def forward(self, new, old, adv):
                ratio = (new - old).exp()
                return -torch.min(ratio * adv, ratio.clamp(1 - self.eps, 1 + self.eps) * adv).mean()
        model = torch.nn.Linear(2, 2)
        loss = Loss(0.2)(torch.log_softmax(model(x), -1)[0], old, adv)
        loss.backward()
    """)
    ((_, terms),) = program.losses
    assert [str(term.kind) for term in terms] == ["clipped surrogate"]


def test_what_a_trainer_of_a_library_is_given_it_keeps(value_of):
    text = """
        import torch
        from trl import RLOOTrainer
        class Own(RLOOTrainer):
            def __init__(self, policy, **rest):
                super().__init__(policy=policy, **rest)
            def train(self):
                return self.model
        y = Own(policy=torch.nn.Linear(2, 2), tokenizer=t).train()
    """
    assert value_of(text).op == "module"


def test_quotes_within_an_f_string_are_read_as_python_3_12_does(value_of):
    assert value_of('config = {"a": 1}\nprint(f"{config["a"]} of {config["a"]}")\ny = config["a"]\n').constant == 1


@pytest.mark.parametrize(
    "text",
    [
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\n"
        "y = list(pool.map(lambda x: made, range(3)))[0]",
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\n"
        "futures = [pool.submit(lambda x: made, i) for i in range(3)]\ny = [f.result() for f in futures][0]",
        "from multiprocessing import Pool\ny = Pool().starmap(lambda a, b: a, [(made, other)])[0]",
        "from queue import Queue\nq = Queue()\nq.put(made)\ny = q.get()",
        "import threading\nfrom queue import Queue\nq = Queue()\ndef work(q):\n    q.put(made)\n"
        "threading.Thread(target=work, args=(q,)).start()\ny = q.get(timeout=1)",
        "import asyncio\nasync def one():\n    return made\n"
        "async def all_of_them():\n    return await asyncio.gather(*[one() for _ in range(3)])\n"
        "y = asyncio.run(all_of_them())[0]",
        "import asyncio\nasync def main():\n    return await asyncio.to_thread(lambda: made)\ny = asyncio.run(main())",
    ],
)
def test_what_a_pool_a_queue_or_a_task_makes_comes_out(value_of, text):
    assert "exp" in {value.op for value in ancestors(value_of(IMPORTS + MADE + text))}


def test_a_parameter_that_is_declared_as_a_record_is_what_the_program_makes(value_of):
    text = "rows = [Experience(made)]\ndef learn(rows: list[Experience]):\n    for row in rows:\n        y = row.ids\n"
    assert "exp" in {value.op for value in ancestors(value_of(IMPORTS + MADE + EXPERIENCE + text))}

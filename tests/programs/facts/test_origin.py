"""Gradients, and the networks behind a value."""

import pytest

from assay.programs.facts.ratio import differences

START = """
import copy
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("tiny")
reference = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
"""


def last(program, name="y"):
    return [one for one in program.values if name in one.names][-1]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("y = model(ids).logits", True),
        ("y = model(ids).logits.detach()", False),
        ("y = model(ids).logits.mean().item()", False),
        ("y = model(ids).logits.argmax(-1)", False),
        ("y = model(ids).logits.data", False),
        ("with torch.no_grad():\n    y = model(ids).logits", False),
        ("with torch.no_grad():\n    x = model(ids).logits\ny = x * 2", False),
        ("with torch.set_grad_enabled(flag):\n    y = torch.exp(model(ids).logits)", None),
        ("y = model.generate(ids)", False),
        ("y = rewards_of(ids)", False),
        ("def f(x):\n    y = x * 2", None),
        ("def f(x):\n    y = model(x).logits + x", True),
        ("reference.requires_grad_(False)\ny = reference(ids).logits", False),
        ("for p in reference.parameters():\n    p.requires_grad = False\ny = reference(ids).logits", False),
        ("for p in model.parameters():\n    if f(p):\n        p.requires_grad = False\ny = model(ids).logits", True),
        ("y = torch.tensor([1.0])[model(ids).logits]", False),
        ("y = torch.where(model(ids).logits > 0, 1, 2)", False),
        ("y = 0\nfor i in range(3):\n    y = y + model(ids).logits", True),
        ("y = 0\nfor i in range(3):\n    y = y + 1", False),
        ("x = 0\nfor i in range(3):\n    y = x\n    x = model(ids).logits", True),
        ("losses = []\nlosses.append(model(ids).logits)\ny = torch.stack(losses)", True),
        ("y = torch.tensor([model(ids).logits.mean()])", False),
        ("if c:\n    x = model(ids).logits\nelse:\n    x = 0\ny = x", True),
    ],
)
def test_a_gradient_flows(text, answer, read):
    program = read(START + text)
    assert program.origins.gradient(last(program)) is answer


def test_the_network_behind_a_value_is_found_through_wrappers(read):
    program = read(START + "wrapped = torch.compile(model)\ny = wrapped(model.generate(ids)).logits.mean()")
    (network,) = program.origins.networks(last(program))
    assert network.names[0] == "model"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("y = reference(ids).logits", True),
        ("y = model(ids).logits", False),
        ("y = copy.deepcopy(model)(ids).logits", True),
        ("with model.disable_adapter():\n    y = model(ids).logits", True),
        ("y = reference(ids).logits - model(ids).logits", False),
        ("y = rewards", None),
    ],
)
def test_a_reference_is_another_network_than_the_trained_one(text, answer, read):
    program = read(START + text)
    assert program.origins.is_reference(last(program)) is answer


def test_without_an_optimizer_the_trained_network_is_the_one_of_the_loss(read):
    text = START.replace("optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)\n", "")
    program = read(text + "loss = model(ids).logits.mean()\nloss.backward()")
    assert [one.names[0] for one in program.origins.trained()] == ["model"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y = new - old", ("new", "old")),
        ("y = torch.exp(new - old)", ("new", "old")),
        ("y = torch.exp(-(old - new))", ("new", "old")),
        ("y = torch.exp(old - new).reciprocal()", ("new", "old")),
        ("y = torch.exp((new - old).sum(-1) / 5)", ("new", "old")),
        ("y = torch.exp(((new - old) * (ids != 0)).sum(-1))", ("new", "old")),
        ("y = torch.exp(new - old).clamp(0.8, 1.2)", ("new", "old")),
        ("a, b = -new, -old\ny = torch.exp(b - a)", ("a", "b")),
        ("a, b = new.exp(), old.exp()\ny = a / b", ("new", "old")),
    ],
)
def test_the_ends_of_a_ratio(text, names, read):
    chosen = "model(ids).logits.log_softmax(-1).gather(-1, ids)"
    program = read(START + f"new = {chosen}\nold = {chosen}.detach()\n" + text)
    (difference,) = differences(program, last(program))
    assert (difference.left.names[0], difference.right.names[0]) == names


def test_a_long_chain_of_steps_is_followed_to_its_end(read):
    program = read(START + "y = model(ids).logits\n" + "y = y * rewards\n" * 3000)
    assert program.origins.gradient(last(program)) is True
    assert len(program.origins.forwards(last(program))) == 1

"""Adapters made by hand: the reference is the same network with them off (KL05), and its base is frozen (OPT02)."""

import pytest
from doctor.illnesses.read_script import codes_in, edit_script

from assay.doctor.catalogue import catalogue

SCRIPT = """
import contextlib, copy, time
import torch
import torch.nn as nn
import torch.nn.functional as F
from task import contexts, worth

ADAPT = True

class LowRank(nn.Module):
    active = True

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.on, self.scale = True, 2.0

    def forward(self, x):
        y = self.base(x)
        if self.on and LowRank.active and ADAPT:
            y = y + self.scale * (x @ self.down.T) @ self.up.T
        return y

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 64), nn.Linear(64, 4)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return F.log_softmax(self.two(self.drop(torch.tanh(self.one(x)))), -1)

    def adapt(self):
        for name in ("one", "two"):
            setattr(self, name, LowRank(getattr(self, name)))

    def set_adapters(self, on):
        for layer in self.modules():
            if isinstance(layer, LowRank):
                layer.on = on

MANAGER

policy = Policy()
FROZEN
OPTIMIZER
for step in range(80):
    x = contexts(16).repeat_interleave(8, 0)
    with torch.no_grad():
        old = policy(x)
        actions = torch.multinomial(old.exp(), 1)
        old = old.gather(1, actions)
        REFERENCE
    rewards = worth(x, actions).view(16, 8)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    for epoch in range(2):
        new = policy(x).gather(1, actions)
        ratio = (new - old).exp()
        kl = (ref - new).exp() - (ref - new) - 1
        loss = (-torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) + 0.02 * kl).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
FROZEN = "for p in policy.parameters():\n    p.requires_grad_(False)\npolicy.adapt()"
OPTIMIZER = "optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=2e-3)"
REF = "ref = policy(x).gather(1, actions)"
OFF = "@contextlib.contextmanager\ndef off(net):\n    {}\n    try:\n        yield\n    finally:\n        {}\n"
UNDER = f"with off(policy):\n            {REF}"
SWITCHED = {
    "a flag of the class": (OFF.format("LowRank.active = False", "LowRank.active = True"), UNDER),
    "a flag of each layer": (
        OFF.format("for m in net.modules():\n        m.on = False", "for m in net.modules():\n            m.on = True"),
        UNDER,
    ),
    "a scale of zero": (
        OFF.format(
            "for m in net.modules():\n        m.scale = 0.0", "for m in net.modules():\n            m.scale = 2.0"
        ),
        UNDER,
    ),
    "a method that switches": (OFF.format("net.set_adapters(False)", "net.set_adapters(True)"), UNDER),
    "a flag of the script": (OFF.format("global ADAPT\n    ADAPT = False", "ADAPT = True"), UNDER),
    "a class": (
        "class off:\n    def __init__(self, net):\n        self.net = net\n\n"
        "    def __enter__(self):\n        self.net.set_adapters(False)\n\n"
        "    def __exit__(self, *error):\n        self.net.set_adapters(True)\n",
        UNDER,
    ),
    "a manager of both": (
        "@contextlib.contextmanager\ndef adapters(net, on):\n    net.set_adapters(on)\n    yield\n"
        "    net.set_adapters(True)\n",
        f"with adapters(policy, False):\n            {REF}",
    ),
    "first weights": (
        "@contextlib.contextmanager\ndef first(net):\n    now = copy.deepcopy(net.state_dict())\n"
        "    net.load_state_dict(FIRST)\n    yield\n    net.load_state_dict(now)\n",
        f"with first(policy):\n            {REF}",
    ),
    "off and on again": (
        "",
        f"policy.set_adapters(False)\n        {REF}\n        policy.set_adapters(True)",
    ),
    "off and on again, layer by layer": (
        "",
        "for m in policy.modules():\n            if isinstance(m, LowRank):\n                m.on = False\n"
        f"        {REF}\n"
        "        for m in policy.modules():\n            if isinstance(m, LowRank):\n                m.on = True",
    ),
    "the class off and on again": ("", f"LowRank.active = False\n        {REF}\n        LowRank.active = True"),
    "first weights, and back": (
        "",
        "now = copy.deepcopy(policy.state_dict())\n        policy.load_state_dict(FIRST)\n"
        f"        {REF}\n        policy.load_state_dict(now)",
    ),
    "layers of peft": ("", f"policy.disable_adapter_layers()\n        {REF}\n        policy.enable_adapter_layers()"),
    "adapters by name": ("", f'policy.set_adapter("first")\n        {REF}\n        policy.set_adapter("policy")'),
}
EVAL = OFF.format("net.eval()", "net.train()")
ITSELF = {
    "the network as it is": ("", REF),
    "in eval mode": (EVAL, UNDER),
    "without dropout": (OFF.format("net.drop.p = 0.0", "net.drop.p = 0.1"), UNDER),
    "in a timer": (
        "class off:\n    def __init__(self, net):\n        self.net = net\n\n"
        "    def __enter__(self):\n        self.on = time.time()\n\n"
        "    def __exit__(self, *error):\n        print(time.time() - self.on)\n",
        UNDER,
    ),
    "switched on again too early": (
        "",
        f"policy.set_adapters(False)\n        policy.set_adapters(True)\n        {REF}",
    ),
    "adapters on by name": (
        "@contextlib.contextmanager\ndef adapters(net, on):\n    net.set_adapters(on)\n    yield\n"
        "    net.set_adapters(True)\n",
        f"with adapters(policy, on=True):\n            {REF}",
    ),
}


def script(manager="", reference=SWITCHED["off and on again"][1], frozen=FROZEN, optimizer=OPTIMIZER):
    parts = {"MANAGER": manager, "FROZEN": frozen, "OPTIMIZER": optimizer, "REFERENCE": reference}
    text = SCRIPT
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def every_code():
    return [illness.code for illness in catalogue() if illness.source is not None]


@pytest.mark.parametrize("form", SWITCHED)
def test_the_network_with_its_adapters_off_is_a_reference(form, tmp_path):
    assert codes_in(script(*SWITCHED[form]), tmp_path, every_code()) == set()


@pytest.mark.parametrize("form", ITSELF)
def test_the_trained_network_as_its_own_reference_is_found(form, tmp_path):
    assert codes_in(script(*ITSELF[form]), tmp_path, ["KL05"]) == {"KL05"}


TOLD = (
    ("    def forward(self, x):\n        y = self", "    def forward(self, x, adapt=True):\n        y = self"),
    ("if self.on and LowRank.active and ADAPT:", "if adapt:"),
    ("    def forward(self, x):\n        return", "    def forward(self, x, adapt=True):\n        return"),
    ("self.one(x)", "self.one(x, adapt)"),
    ("self.drop(torch.tanh(self.one(x, adapt))))", "self.drop(torch.tanh(self.one(x, adapt))), adapt)"),
    (
        "    def adapt(self):",
        "    def plain(self, x):\n        return self.forward(x, adapt=False)\n\n    def adapt(self):",
    ),
)
SCORE = "def score(net, x, actions, use_adapters=True):\n    return net(x, use_adapters).gather(1, actions)\n"


@pytest.mark.parametrize(
    ("reference", "codes"),
    [
        ("ref = policy(x, adapt=False).gather(1, actions)", set()),
        ("ref = policy(x, False).gather(1, actions)", set()),
        ("ref = policy.plain(x).gather(1, actions)", set()),
        ("ref = score(policy, x, actions, use_adapters=False)", set()),
        ("ref = policy(x, adapt=True).gather(1, actions)", {"KL05"}),
        ("ref = policy(x, True).gather(1, actions)", {"KL05"}),
        ("ref = score(policy, x, actions)", {"KL05"}),
    ],
)
def test_a_pass_that_is_told_to_leave_the_adapters_out_is_a_reference(reference, codes, tmp_path):
    text = edit_script(script(SCORE, reference), *TOLD)
    assert codes_in(text, tmp_path, every_code()) == codes


ALL = "optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)"
FREEZE = "for p in policy.parameters():\n    p.requires_grad_(False)"
ADAPTED = {
    "layers put in by name": (FROZEN, ALL),
    "a layer that is assigned": (f"{FREEZE}\npolicy.two = LowRank(policy.two)", ALL),
    "a head that is new": (f"{FREEZE}\npolicy.two = nn.Linear(64, 4)", ALL),
    "a module that is added": (f'{FREEZE}\npolicy.add_module("two", LowRank(policy.two))', ALL),
    "the whole at once": ("policy.requires_grad_(False)\npolicy.adapt()", ALL),
    "adapters of a library": (f"from lora import add_lora\n{FREEZE}\nadd_lora(policy)", ALL),
    "what is left is filtered": (FROZEN, OPTIMIZER),
}
FROZEN_ALL = {
    "after the adapters": (f"policy.adapt()\n{FREEZE}", ALL),
    "the whole at once": ("policy.adapt()\npolicy.requires_grad_(False)", ALL),
    "after the optimizer": ("policy.adapt()", f"{OPTIMIZER}\n{FREEZE}"),
    "no adapters at all": (FREEZE, ALL),
}


@pytest.mark.parametrize("form", ADAPTED)
def test_a_frozen_base_under_trained_adapters_is_left_alone(form, tmp_path):
    frozen, optimizer = ADAPTED[form]
    assert codes_in(script(frozen=frozen, optimizer=optimizer), tmp_path, ["OPT02"]) == set()


@pytest.mark.parametrize("form", FROZEN_ALL)
def test_a_network_that_is_frozen_with_its_adapters_is_found(form, tmp_path):
    frozen, optimizer = FROZEN_ALL[form]
    assert codes_in(script(frozen=frozen, optimizer=optimizer), tmp_path, ["OPT02"]) == {"OPT02"}


@pytest.mark.parametrize("form", SWITCHED)
def test_a_ratio_that_is_always_one_is_found_beside_such_a_reference(form, tmp_path):
    again = "        with torch.no_grad():\n            old = policy(x).gather(1, actions)\n        new = policy(x)"
    text = script(*SWITCHED[form]).replace("        new = policy(x)", again)
    assert codes_in(text, tmp_path, ["KL05", "RAT02"]) == {"RAT02"}

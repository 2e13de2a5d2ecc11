"""Who draws tokens is known by what it is given, whatever it is called; networks by what is done with them."""

import pytest

from assay.programs.facts.kinds import Kind

MODEL = "import requests, torch\nmodel = torch.nn.Linear(2, 2)\n"


@pytest.mark.parametrize(
    "text",
    [
        "y = engine.complete(prompts, temperature=0.7, max_tokens=64)",
        "y = rollout(model, prompts, temperature=0.7, top_p=0.9)",
        "from unseen import roll\ny = roll(model, prompts, max_new_tokens=64, do_sample=True)",
        "from unseen import generate_all\ny = generate_all(model, prompts)",
        "y = self_play.act(prompts, sampling_params=params)",
        "y = requests.post(url, json={'prompts': prompts, 'temperature': 1.0, 'max_tokens': 8})",
        "s = requests.Session()\nbody = {'temperature': 1.0, 'top_p': 0.9}\ny = s.post(url, json=body, timeout=3)",
        "def get(**given):\n    return engine.complete(prompts, **given)\ny = get(temperature=0.7, max_tokens=64)",
    ],
)
def test_a_call_with_settings_of_a_distribution_draws(value_of, text):
    assert value_of(MODEL + text).op == "generate"


@pytest.mark.parametrize(
    "text",
    [
        "y = judge.create(messages=[{'role': 'user'}], temperature=0.0, max_tokens=8)",
        "y = scaled_softmax(x, temperature=0.7)",
        "from unseen import Settings\ny = Settings(temperature=0.7, top_p=0.9, max_tokens=64)",
        "y = dict(temperature=0.7, top_p=0.9)",
        "y = requests.post(url, json={'answers': texts})",
        "from unseen import load\ny = load(model, max_length=64)",
    ],
)
def test_other_calls_do_not(value_of, text):
    assert value_of(MODEL + text).op != "generate"


def test_the_first_of_what_a_draw_returns_are_tokens(read):
    program = read(MODEL + "ids, logits = engine.complete(prompts, temperature=0.7, max_tokens=64)")
    (ids,) = (value for value in program.values if "ids" in value.names)
    (logits,) = (value for value in program.values if "logits" in value.names)
    assert program.kinds.is_a(ids, Kind.SAMPLED)
    assert program.kinds.of(logits) is None


@pytest.mark.parametrize(
    "text",
    [
        "y = model.forward(ids)",
        "from trl.trainer.utils import forward\ny = forward(model, ids, 0)",
        "from trl.models.utils import unwrapped\nwith unwrapped(model, accelerator) as inner:\n    y = inner(ids)",
    ],
)
def test_a_pass_is_a_pass_however_it_is_asked_for(value_of, text):
    assert value_of(MODEL + text).op == "forward"


UPDATE = """
import torch
def update(policy, reference, optimizer, ids, advantages):
    new = torch.log_softmax(policy(ids).logits, -1).gather(-1, ids[..., None]).squeeze(-1)
    with torch.no_grad():
        old = torch.log_softmax({old}(ids).logits, -1).gather(-1, ids[..., None]).squeeze(-1)
    loss = -((new - old).exp() * advantages).mean()
    loss.backward()
"""


@pytest.mark.parametrize("old", ["policy", "reference"])
def test_the_only_network_outside_of_no_grad_is_the_one_that_is_trained(read, old):
    program = read(UPDATE.format(old=old))
    ((loss, terms),) = program.losses
    assert program.origins.gradient(loss) is True
    assert [term.is_policy for term in terms] == [True]


def test_of_two_networks_that_are_handed_in_nothing_is_known(read):
    program = read(UPDATE.format(old="reference").replace("with torch.no_grad():", "if True:"))
    ((loss, _),) = program.losses
    assert program.origins.gradient(loss) is None


def test_of_two_networks_the_one_that_the_optimizer_holds_is_trained(read):
    text = UPDATE.format(old="reference").replace("with torch.no_grad():", "if True:")
    program = read(text.replace("new =", "optimizer = torch.optim.AdamW(policy.parameters())\n    new =", 1))
    ((loss, _),) = program.losses
    calls = program.origins.forwards(loss)
    assert {call.name: program.origins.gradient(call) for call in calls} == {"policy": True, "reference": None}

"""Shapes that broadcast: lists that a loop filled, flat cross-entropies, critics that end in one number."""

import pytest

from assay.doctor.examples.scripts import LOOP
from tests.doctor.illnesses.read_script import edit_script, likely_codes_in

EPISODES = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical
from transformers import AutoModelForCausalLM
from task import play, score

model = AutoModelForCausalLM.from_pretrained("tiny")
critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([*model.parameters(), *critic.parameters()], lr=1e-4)

for episode in range(100):
    ids, states, rewards = play(model)
    old, returns, running = [], [], 0.0
    for t in range(1, ids.shape[1]):
        with torch.no_grad():
            chosen = Categorical(logits=model(ids[:, :t]).logits[:, -1, :]).log_prob(ids[:, t])
        old.append(chosen.item())
    for reward in reversed(rewards):
        running = reward + 0.99 * running
        returns.insert(0, running)
    old = torch.tensor(old)
    returns = torch.tensor(returns)
    new = []
    for t in range(1, ids.shape[1]):
        new.append(Categorical(logits=model(ids[:, :t]).logits[:, -1, :]).log_prob(ids[:, t]))
    new = torch.cat(new)
    ratio = torch.exp(new - old)
    values = critic(states).squeeze(-1)
    advantages = (returns - values).detach()
    gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    loss = -gain.mean() + 0.5 * F.mse_loss(values, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FLAT = edit_script(
    LOOP,
    (
        "    logprobs = F.log_softmax(logits, dim=-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)\n",
        "    flat = F.cross_entropy(logits.reshape(-1, logits.size(-1)), completions.reshape(-1), reduction='none')\n"
        "    logprobs = -flat.reshape(completions.size(0), -1)\n",
    ),
    ("reward(completions).view(-1, GROUP)", "torch.tensor([row.reward for row in reward(completions)])"),
    ("(rewards - rewards.mean(1, keepdim=True)).view(-1, 1)", "rewards[:, None]"),
)


@pytest.mark.parametrize(
    ("script", "changes", "expected"),
    {
        "one behind the other": (EPISODES, [], set()),
        "stacked and squeezed": (EPISODES, [("torch.cat(new)", "torch.stack(new).squeeze(-1)")], set()),
        "stacked and squeezed wholly": (EPISODES, [("torch.cat(new)", "torch.stack(new).squeeze()")], set()),
        "stacked": (EPISODES, [("torch.cat(new)", "torch.stack(new)")], {"ADV08"}),
        "a critic's column": (EPISODES, [(".squeeze(-1)\n    adv", "\n    adv")], {"ADV08"}),
        "two columns": (
            EPISODES,
            [(".squeeze(-1)\n    adv", "\n    adv"), ("torch.tensor(returns)", "torch.tensor(returns).unsqueeze(1)")],
            set(),
        ),
        "a flat cross-entropy": (FLAT, [], set()),
        "a slice that does nothing": (FLAT, [("rewards[:, None]", "rewards[:None]")], {"ADV08"}),
        "all sizes of 1 squeezed": (
            LOOP,
            [
                ("reward(completions).view(-1, GROUP)", "torch.tensor([reward(row) for row in completions])"),
                ("(rewards - rewards.mean(1, keepdim=True)).view(-1, 1)", "rewards - rewards.mean()"),
                (".squeeze(-1)\n", ".squeeze()\n"),
            ],
            {"ADV08"},
        ),
    }.values(),
)
def test_numbers_of_rows_and_of_turns_must_not_meet_another_dimension(script, changes, expected, tmp_path):
    assert likely_codes_in(edit_script(script, *changes), tmp_path, ["ADV08"]) == expected

"""Choices that are taken away before a draw must be taken away when it is scored (SAMP02)."""

import pytest
from doctor.illnesses.read_script import codes_in

SCRIPT = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from task import Game

net = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
NEVER = torch.tensor([False, False, False, False, True])

def act(seen, offered, ended):
    logits = net(seen)DRAWN
    return torch.multinomial(F.softmax(logits, -1), 1).squeeze(1)

def evaluate(seen, actions, offered):
    logits = net(seen)SCORED
    return F.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

for step in range(50):
    game = Game(8, 8)
    states, actions, masks, live = [], [], [], []
    with torch.no_grad():
        for t in range(6):
            seen, offered, ended = game.observe(), game.weights <= game.room[:, None], game.ended
            action = act(seen, offered, ended)
            states.append(seen), actions.append(action), masks.append(offered), live.append(~ended)
            game.put(action)
        x, a, offered = torch.stack(states, 1), torch.stack(actions, 1), torch.stack(masks, 1)
        live = torch.stack(live, 1).float()
        old = evaluate(x, a, offered)
    rewards = game.score().view(8, 8)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    for epoch in range(2):
        ratio = (evaluate(x, a, offered) - old).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -(gain * live).sum() / live.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
BANNED = '.masked_fill(~offered, float("-inf"))'
SOUND = {
    "nothing is taken away": ("", ""),
    "on both sides": (BANNED, BANNED),
    "in another form when scored": (BANNED, "\n    logits = torch.where(offered, logits, -1e9)"),
    "by a sum when scored": (BANNED, "\n    logits = logits + torch.log(offered.float())"),
    "rows that have ended": ('.masked_fill(ended.unsqueeze(1), float("-inf"))\n    logits[:, 0] = 0.0', ""),
    "rows that have ended, by index": ('.masked_fill(ended[:, None], float("-inf"))\n    logits[:, 0] = 0.0', ""),
}
FAULTY = {
    "in the draw alone": (BANNED, ""),
    "by a number of its own": (".masked_fill(offered == 0, -torch.inf)", ""),
    "after a temperature": ("\n    logits = logits.masked_fill(~offered, -torch.inf) / 1.0", ""),
}


def found(form, folder):
    drawn, scored = form
    return codes_in(SCRIPT.replace("DRAWN", drawn).replace("SCORED", scored), folder, ["SAMP02"])


@pytest.mark.parametrize("form", SOUND)
def test_choices_that_are_taken_away_on_both_sides_are_left_alone(form, tmp_path):
    assert found(SOUND[form], tmp_path) == set()


@pytest.mark.parametrize("form", FAULTY)
def test_choices_that_are_taken_away_before_the_draw_alone_are_found(form, tmp_path):
    assert found(FAULTY[form], tmp_path) == {"SAMP02"}

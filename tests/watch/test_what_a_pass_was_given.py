"""Positions that count padding, and states that were changed after they were stored."""

import json

import pytest

PADDED = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(vocab_size=20, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=0)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def score(ids, attended, width):
    POSITIONS
    logits = model(input_ids=ids, attention_mask=attended, **places).logits[:, width - 1 : -1]
    return logits.log_softmax(-1).gather(2, ids[:, width:].unsqueeze(2)).squeeze(2)


for step in range(3):
    lengths = torch.randint(1, 7, (4,)).repeat_interleave(6)
    ids = torch.randint(3, 20, (4, 6)).repeat_interleave(6, 0)
    attended = (torch.arange(6) >= 6 - lengths[:, None]).long()
    ids = ids * attended
    full = model.generate(input_ids=ids, attention_mask=attended, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=5,
                          pad_token_id=0, eos_token_id=2)
    answers = full[:, 6:]
    ended = (answers == 2).long()
    mask = ((ended.cumsum(1) - ended) == 0).long()
    rewards = ((answers > 10).float() * mask).sum(1)
    table = rewards.view(4, 6)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    every = torch.cat([attended, mask], 1)
    with torch.no_grad():
        old = score(full, every, 6)
    for _ in range(2):
        ratio = (score(full, every, 6) - old).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -(gain * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
STORED = """
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
random = np.random.default_rng(0)
field = np.zeros(3, dtype=np.float32)
for step in range(4):
    states, actions, old, gains = [], [], [], []
    for _ in range(40):
        field[:] = random.normal(size=3)
        state = torch.from_numpy(KEPT)
        with torch.no_grad():
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            old.append(choice.log_prob(action))
        states.append(state)
        actions.append(action)
        gains.append(float(field[action.item() % 3]))
    gains = torch.tensor(gains)
    advantages = (gains - gains.mean()) / (gains.std() + 1e-6)
    states, actions, old = torch.stack(states), torch.stack(actions), torch.stack(old)
    for _ in range(2):
        new = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
        ratio = torch.exp(new - old)
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def report_on(serve, script):
    done = serve(script, how="json")
    assert done["code"] == 0, done["words"]
    return json.loads(done["text"])


def sure_of(report):
    assert report["crashed"] == []
    return [finding["code"] for finding in report["findings"] if finding["confidence"] != "possible"]


@pytest.mark.parametrize(
    ("positions", "codes"),
    [("places = {}", ["ALGN04", "LAW03"]), ("places = {'position_ids': (attended.cumsum(1) - 1).clamp(min=0)}", [])],
    ids=["padding is counted", "padding is not counted"],
)
def test_positions_that_count_padding_are_named_first(serve, write, positions, codes):
    report = report_on(serve, write(PADDED.replace("POSITIONS", positions)))
    assert sure_of(report) == codes
    assert [finding["confidence"] for finding in report["findings"] if finding["code"] in codes] == ["proven"] * len(
        codes
    )


@pytest.mark.parametrize("kept", ["field", "field.copy()"])
def test_states_that_were_changed_after_they_were_stored_are_counted(serve, write, kept):
    report = report_on(serve, write(STORED.replace("KEPT", kept)))
    counted = [note for note in report["notes"] if "states that were scored" in note]
    if kept == "field":
        assert counted == [
            "39 of 40 states that were scored are not those that the actions were drawn at (1 different ones were "
            "scored, 40 were met): see whether stored states are changed in place afterwards, as torch.from_numpy() "
            "shares its memory"
        ]
        assert sure_of(report)[0] == "RAT01"
    else:
        assert (counted, sure_of(report)) == ([], [])

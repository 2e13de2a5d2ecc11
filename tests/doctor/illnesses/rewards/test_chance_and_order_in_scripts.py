"""Chance in an environment is not a random reward (REW01); a set within one answer is not an order of rows (ADV10)."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GENERATE

CART = """
import random
import torch
import torch.nn as nn
from torch.distributions import Categorical, Normal

class Cart:
    def __init__(self, carts):
        {start}

    def see(self):
        return torch.stack([self.place, self.wish], 1)

    def step(self, push):
        self.place = self.place + 0.1 * push{gust}
        return {reward}

policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
log_std = nn.Parameter(torch.zeros(1))
optimizer = torch.optim.Adam([*policy.parameters(), log_std], lr=1e-3)
for turn in range(50):
    cart = Cart(64)
    seen, pushes, olds, rewards = [], [], [], []
    with torch.no_grad():
        for t in range(20):
            x = cart.see()
            mean = policy(x)[:, 0]
            push = {draw}
            seen.append(x), pushes.append(push), olds.append(Normal(mean, log_std.exp()).log_prob(push))
            rewards.append(cart.step(push))
    x, u, old = torch.stack(seen, 1), torch.stack(pushes, 1), torch.stack(olds, 1)
    total = torch.stack(rewards, 1).sum(1).view(8, 8)
    advantages = ((total - total.mean(1, keepdim=True)) / (total.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    for epoch in range(2):
        new = Normal(policy(x)[..., 0], log_std.exp()).log_prob(u)
        ratio = (new - old).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
START = "self.place, self.wish = torch.rand(carts) * 2 - 1, torch.rand(carts)"
REWARD = "-((self.place - self.wish) ** 2)"
DRAW = "Normal(mean, log_std.exp()).sample()"
ENVIRONMENTS = {
    "a start that is drawn": {},
    "a start from the standard library": {
        "start": "self.place, self.wish = torch.full((carts,), random.uniform(-1, 1)), torch.zeros(carts)"
    },
    "wind": {"gust": " + 0.1 * torch.randn(64)"},
    "wind from the standard library": {"gust": " + random.gauss(0, 0.1)"},
    "mean and noise": {"draw": "mean + log_std.exp() * torch.randn_like(mean)"},
    "a draw with rsample": {"draw": "Normal(mean, log_std.exp()).rsample()"},
}
BY_CHANCE = {
    "one number for all": "torch.rand(64)",
    "of another world": "-((torch.rand(64) - torch.rand(64)) ** 2)",
    "from the standard library": "torch.zeros(64) + random.random()",
}


def cart(**changes):
    return CART.format(**({"start": START, "reward": REWARD, "draw": DRAW, "gust": ""} | changes))


@pytest.mark.parametrize("form", ENVIRONMENTS)
def test_chance_in_the_state_of_an_environment_is_no_reward_by_chance(form, tmp_path):
    assert codes_in(cart(**ENVIRONMENTS[form]), tmp_path, ["REW01"]) == set()


@pytest.mark.parametrize("form", BY_CHANCE)
def test_a_reward_that_looks_at_no_action_is_drawn_by_chance(form, tmp_path):
    assert codes_in(cart(reward=BY_CHANCE[form]), tmp_path, ["REW01"]) == {"REW01"}


def test_a_bandit_whose_arms_were_drawn_pays_for_the_arm(tmp_path):
    text = """
import random
import torch
from torch.distributions import Categorical

pays = torch.tensor([random.gauss(0, 1) for _ in range(10)])
logits = torch.nn.Parameter(torch.zeros(10))
optimizer = torch.optim.Adam([logits], lr=0.05)
for turn in range(200):
    policy = Categorical(logits=logits)
    arms = policy.sample((256,))
    rewards = pays[arms] + torch.randn(256)
    advantages = rewards - rewards.mean()
    loss = -(policy.log_prob(arms) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    assert codes_in(text, tmp_path, ["REW01"]) == set()


PAINT = """
import torch
import torch.nn as nn
from task import colours, likeness

painter = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 5))
optimizer = torch.optim.Adam(painter.parameters(), lr=1e-3)

def judge(colour, strokes):
    reward = MADE
    for i in range(len(strokes)):
        reward[i] = WRITTEN
    return reward

for step in range(50):
    colour = colours(8).repeat_interleave(8, 0)
    with torch.no_grad():
        weights = torch.softmax(painter(colour), -1)
        strokes = torch.multinomial(weights, 1)
        old = weights.log().gather(1, strokes)
    rewards = judge(colour, strokes).float().view(8, 8)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    for epoch in range(2):
        new = torch.log_softmax(painter(colour), -1).gather(1, strokes)
        ratio = (new - old).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
NEAR = "torch.exp(-likeness(strokes[i], colour[i]))"


@pytest.mark.parametrize(
    ("made", "written", "codes"),
    [
        ("torch.zeros(len(strokes))", NEAR, set()),
        ("torch.zeros_like(strokes[:, 0], dtype=torch.float)", NEAR, set()),
        ("torch.zeros_like(strokes[:, 0]).float()", NEAR, set()),
        ("torch.zeros_like(strokes.float()[:, 0])", NEAR, set()),
        ("torch.zeros_like(colour[:, 0])", NEAR, set()),
        ("torch.zeros_like(strokes[:, 0])", "1", set()),
        ("torch.zeros_like(strokes[:, 0])", "likeness(strokes[i], colour[i])", set()),
        ("torch.zeros_like(strokes[:, 0])", NEAR, {"REW01"}),
        ("torch.zeros_like(strokes.squeeze(1))", f"{NEAR}.item()", {"REW01"}),
        ("torch.zeros(len(strokes), dtype=torch.long)", "torch.sigmoid(likeness(strokes[i], colour[i]))", {"REW01"}),
        ("torch.empty_like(strokes[:, 0])", "likeness(strokes[i], colour[i]) / 9", {"REW01"}),
    ],
)
def test_fractions_in_a_tensor_of_integers_are_cut_off(made, written, codes, tmp_path):
    text = PAINT.replace("MADE", made).replace("WRITTEN", written)
    assert codes_in(text, tmp_path, ["REW01"]) == codes


REWARDS = "[reward(text, answers) for text in tokenizer.batch_decode(completions)]"
WITHIN_AN_ANSWER = {
    "letters, each once": "sum(0.5 for c in set(text) if c in answers)",
    "words in order": "sum(float(w in answers) for w in sorted(text.split()))",
    "the share of words": "len([w for w in set(text.split()) if w in answers]) / 9",
    "any of them": "float(any(w in answers for w in sorted(set(text.split()))))",
    "the best of them": "max(grade(w) for w in set(text.split()))",
}
LOOPED = (
    "def judge(text, answers):\n    points = 0.0\n    for word in set(text.split('.')[0]):\n"
    "        points += 0.5 * float(word in answers)\n    return points\n\n"
)
OF_ROWS = {
    "a set of rows": "[reward(text, answers) for text in set(tokenizer.batch_decode(completions))]",
    "rows in order": "[reward(text, answers) for text in sorted(tokenizer.batch_decode(completions))]",
    "the longest first": "[reward(text, answers) for text in sorted(tokenizer.batch_decode(completions), key=len)]",
}


def test_what_is_added_up_in_a_loop_over_a_set_of_one_answer_has_no_order(tmp_path):
    text = GENERATE.replace(REWARDS, REWARDS.replace("reward(", "judge(")).replace(
        "def logprobs_of", f"{LOOPED}def logprobs_of"
    )
    assert codes_in(text, tmp_path, ["ADV10"]) == set()


@pytest.mark.parametrize(
    "rows", ["tokenizer.batch_decode(completions)", "[decode(row) for row in completions.tolist()]"]
)
@pytest.mark.parametrize("form", WITHIN_AN_ANSWER)
def test_a_set_within_one_answer_is_not_an_order_of_rows(form, rows, tmp_path):
    judge = f"def judge(text, answers):\n    return {WITHIN_AN_ANSWER[form]}\n\n"
    text = GENERATE.replace(REWARDS, f"[judge(text, answers) for text in {rows}]")
    assert codes_in(text.replace("def logprobs_of", f"{judge}def logprobs_of"), tmp_path, ["ADV10"]) == set()


@pytest.mark.parametrize("form", OF_ROWS)
def test_rows_in_another_order_are_still_found(form, tmp_path):
    assert codes_in(GENERATE.replace(REWARDS, OF_ROWS[form]), tmp_path, ["ADV10"]) == {"ADV10"}


def test_the_answers_of_each_group_in_another_order_are_found(tmp_path):
    text = GENERATE.replace(
        f"rewards = torch.tensor({REWARDS})",
        "texts = tokenizer.batch_decode(completions)\n    scores = []\n"
        "    for group in [texts[i : i + GROUP] for i in range(0, len(texts), GROUP)]:\n"
        "        for text in sorted(group):\n            scores.append(reward(text, answers))\n"
        "    rewards = torch.tensor(scores)",
    )
    assert codes_in(text, tmp_path, ["ADV10"]) == {"ADV10"}

"""Draws in a loop of the script's own, KLs in the reward, engines: each fault in several ways, and its neighbours."""

import pytest
from doctor.illnesses.read_script import edit_script, likely_codes_in

from assay.doctor.catalogue import by_code

CODES = "SAMP01 SAMP02 SAMP04 SAMP05 SAMP07 RAT04 RAT08 CLIP01 KL01 KL05 LOSS01 LOSS02 LOSS03 OPT02 MODE01".split()
SCRIPT = """
import copy
import torch
from torch import nn
from torch.distributions import Categorical
from task import prompts_of, rewards_of

net = nn.ModuleList([nn.Embedding(20, 32), nn.GRU(32, 32, batch_first=True), nn.Linear(32, 20)])
frozen = copy.deepcopy(net).requires_grad_(False).eval()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)

def logits_of(net, ids):
    table, cell, readout = net
    return readout(cell(table(ids))[0])

@torch.no_grad()
def rollout(ids):
    live = torch.ones(len(ids), dtype=torch.bool)
    masks = []
    for _ in range(8):
        scores = logits_of(net, ids)[:, -1] / 0.8
        weights = torch.softmax(scores, dim=-1)
        token = torch.multinomial(weights, 1)
        masks.append(live)
        live = live & (token[:, 0] != 1)
        ids = torch.cat([ids, token], dim=1)
    return ids, torch.stack(masks, dim=1).float()

def score(net, ids):
    logits = logits_of(net, ids)[:, 2:-1] / 0.8
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 3:].unsqueeze(-1)).squeeze(-1)

for step in range(50):
    ids, mask = rollout(prompts_of(step).repeat_interleave(8, dim=0))
    with torch.no_grad():
        first = score(net, ids)
        anchor = score(frozen, ids)
    penalty = ((first - anchor) * mask).sum(1)
    rewards = (rewards_of(ids) - 0.1 * penalty).view(-1, 8)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)).view(-1)
    opt.zero_grad()
    for rows in range(0, len(ids), 16):
        pick = slice(rows, rows + 16)
        logp = score(net, ids[pick])
        loss = -((logp * mask[pick]).sum(1) * advantages[pick]).sum() / len(ids)
        loss.backward()
    opt.step()
"""
DRAW = "        token = torch.multinomial(weights, 1)\n"
REWARD = "rewards_of(ids) - 0.1 * penalty"
LOSS = "        loss = -((logp * mask[pick]).sum(1) * advantages[pick]).sum() / len(ids)\n"


def with_changes(*pairs):
    return edit_script(SCRIPT, *pairs)


def drawn(*lines):
    return with_changes((DRAW, "".join(f"        {line}\n" for line in lines)))


def found(text, folder):
    return likely_codes_in(text, folder, CODES)


SICK = {
    "SAMP02": {
        "the best few, gathered": drawn(
            "best, where = weights.topk(4)", "token = where.gather(1, torch.multinomial(best, 1))"
        ),
        "the best few, by name": drawn(
            "best = weights.topk(4)", "token = best.indices.gather(1, torch.multinomial(best.values, 1))"
        ),
        "a nucleus, sorted": drawn(
            "ordered, where = weights.sort(descending=True)",
            "ordered[ordered.cumsum(-1) - ordered > 0.9] = 0.0",
            "token = where.gather(1, torch.multinomial(ordered, 1))",
        ),
        "a threshold": drawn("weights[weights < 0.05] = 0.0", "token = torch.multinomial(weights, 1)"),
        "a threshold on a distribution": drawn(
            "dist = Categorical(logits=scores)",
            "token = Categorical(logits=dist.logits.masked_fill(dist.probs < 0.1, -1e9)).sample()[:, None]",
        ),
    },
    "SAMP04": {
        "the mode": drawn("token = Categorical(logits=scores).mode[:, None]"),
        "the likeliest of the distribution's own": drawn(
            "token = Categorical(logits=scores).probs.argmax(-1, keepdim=True)"
        ),
        "the best one": drawn("token = weights.topk(1).indices"),
        "the best one, unpacked": drawn("_, token = torch.topk(scores, 1)"),
        "the greatest": drawn("token = scores.max(-1, keepdim=True).indices"),
    },
    "SAMP07": {
        "logits of an unpacked layer": drawn("token = torch.multinomial(scores, 1)"),
        "logits as probabilities": drawn("token = Categorical(scores).sample()[:, None]"),
        "a distribution's logits": drawn("token = torch.multinomial(Categorical(logits=scores).logits, 1)"),
    },
    "KL01": {
        "added to the reward": with_changes((REWARD, "rewards_of(ids) + 0.1 * penalty")),
    },
    "KL05": {
        "both of the policy": with_changes(("score(frozen, ids)", "score(net, ids)")),
    },
    "LOSS02": {
        "means that nothing divides": with_changes((LOSS, LOSS.replace(".sum() / len(ids)", ".mean()"))),
        "divided by the parts on top": with_changes(
            (LOSS, LOSS.replace("/ len(ids)", "/ len(ids) / (len(ids) // 16)"))
        ),
    },
    "LOSS03": {
        "a mean over the tokens of a part": with_changes(
            (
                LOSS,
                "        loss = -(logp * mask[pick] * advantages[pick, None]).sum() / mask[pick].sum()\n"
                "        loss = loss / (len(ids) // 16)\n",
            )
        ),
    },
    "LOSS01": {"no minus": with_changes((LOSS, LOSS.replace("-((logp", "((logp")))},
    "MODE01": {
        "dropout between recurrent layers": with_changes(
            ("nn.GRU(32, 32, batch_first=True)", "nn.GRU(32, 32, 2, batch_first=True, dropout=0.1)")
        ),
    },
}


@pytest.mark.parametrize(("code", "form"), [(code, form) for code, forms in SICK.items() for form in forms])
def test_each_form_of_the_fault_is_named(code, form, tmp_path):
    codes = found(SICK[code][form], tmp_path)
    assert code in codes
    assert codes - {code} <= by_code(code).explains


WELL = {
    "as it is": SCRIPT,
    "sorted, and nothing is cut": drawn(
        "ordered, where = weights.sort(descending=True)", "token = where.gather(1, torch.multinomial(ordered, 1))"
    ),
    "drawn from a distribution": drawn("token = Categorical(logits=scores).sample()[:, None]"),
    "a distribution's probabilities": drawn("token = torch.multinomial(Categorical(logits=scores).probs, 1)"),
    "a distribution's normalised logits": drawn(
        "token = torch.multinomial(Categorical(logits=scores).logits.exp(), 1)"
    ),
    "parts that are divided once": with_changes(
        (LOSS, LOSS.replace(".sum() / len(ids)", ".mean() / (len(ids) // 16)")),
    ),
    "the best tokens are shown": drawn("token = torch.multinomial(weights, 1)", "print(weights.topk(1).indices[:3])"),
    "one recurrent layer has no dropout": with_changes(
        ("nn.GRU(32, 32, batch_first=True)", "nn.GRU(32, 32, batch_first=True, dropout=0.1)")
    ),
}


@pytest.mark.parametrize("form", WELL)
def test_its_healthy_neighbours_are_not(form, tmp_path):
    assert found(WELL[form], tmp_path) == set()

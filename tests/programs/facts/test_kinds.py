"""The kind of a value follows from what was done to it."""

import pytest

from assay.programs.facts.kinds import Kind

START = """
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("tiny")
ids = model.generate(prompts)
logits = model(ids).logits
"""
LOGPROBS = "lp = logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)\n"
OLD = LOGPROBS + "old = lp.detach()\n"
MASK = "mask = ids != 0\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("y = model(ids)", Kind.OUTPUT),
        ("y = model(ids)[0]", Kind.OUTPUT),
        ("y = logits[:, :-1] / 0.7", Kind.LOGITS),
        ("y = logits.float()", Kind.LOGITS),
        ("y = 0.5 * logits", Kind.LOGITS),
        ("y = logits - logits.max()", Kind.LOGITS),
        ("y = model(ids)['logits']", Kind.OUTPUT),
        ("y = torch.softmax(logits, -1)", Kind.PROBABILITIES),
        ("y = logits.log_softmax(-1)", Kind.LOG_SOFTMAX),
        ("y = torch.log(torch.softmax(logits, -1))", Kind.LOG_SOFTMAX),
        ("y = torch.log(torch.softmax(logits, -1) + 1e-8)", Kind.LOG_SOFTMAX),
        ("y = logits.log_softmax(-1).exp()", Kind.PROBABILITIES),
        ("y = torch.logsumexp(logits, -1)", Kind.LOGSUMEXP),
        ("y = logits - torch.logsumexp(logits, -1, keepdim=True)", Kind.LOG_SOFTMAX),
        ("y = logits.gather(-1, ids)", Kind.TOKEN_LOGITS),
        ("y = logits.gather(-1, ids) - torch.logsumexp(logits, -1)", Kind.LOGPROBS),
        ("y = torch.softmax(logits, -1).gather(-1, ids)", Kind.TOKEN_PROBABILITIES),
        ("y = torch.softmax(logits, -1).gather(-1, ids).log()", Kind.LOGPROBS),
        ("y = logits.log_softmax(-1)[torch.arange(3), ids]", Kind.LOGPROBS),
        ("y = logits.log_softmax(-1)[ids]", Kind.LOGPROBS),
        ("y = logits.log_softmax(-1)[0]", Kind.LOG_SOFTMAX),
        ("y = (logits.log_softmax(-1) * F.one_hot(ids)).sum(-1)", Kind.LOGPROBS),
        ("y = F.cross_entropy(logits, ids)", Kind.NEGATIVE_LOGPROBS),
        ("y = -F.cross_entropy(logits, ids)", Kind.LOGPROBS),
        ("y = torch.nn.CrossEntropyLoss()(logits, ids)", Kind.NEGATIVE_LOGPROBS),
        ("y = torch.distributions.Categorical(logits=logits)", Kind.DISTRIBUTION),
        ("y = torch.distributions.Categorical(logits=logits).log_prob(ids)", Kind.LOGPROBS),
        ("y = torch.distributions.Categorical(logits=logits).sample()", Kind.SAMPLED),
        ("y = torch.distributions.Categorical(logits=logits).entropy()", Kind.ENTROPY),
        ("p = logits.softmax(-1)\ny = (p * logits.log_softmax(-1)).sum(-1)", Kind.ENTROPY),
        ("y = torch.multinomial(logits.softmax(-1), 1)", Kind.SAMPLED),
        ("y = logits.argmax(-1)", Kind.SAMPLED),
        ("y = logits.max(-1)[1]", Kind.SAMPLED),
        ("y = logits.max(-1).indices", Kind.SAMPLED),
        ("y = ids[:, 3:]", Kind.SAMPLED),
        ("y = torch.cat([prompts, ids], 1)", Kind.SAMPLED),
        ("y = ids == 2", Kind.MASK),
        ("y = (ids != 0).float()", Kind.MASK),
        ("y = (ids == 2).cumsum(1)", Kind.COUNT),
        (LOGPROBS + "y = lp.sum(-1)", Kind.LOGPROBS),
        (LOGPROBS + "y = lp.mean()", Kind.LOGPROBS),
        (LOGPROBS + "y = -lp", Kind.NEGATIVE_LOGPROBS),
        (LOGPROBS + "y = lp.exp()", Kind.TOKEN_PROBABILITIES),
        (LOGPROBS + MASK + "y = lp * mask", Kind.LOGPROBS),
        (LOGPROBS + MASK + "y = lp.masked_fill(~mask, 0)", Kind.LOGPROBS),
        (LOGPROBS + "y = torch.stack([lp, lp])", Kind.LOGPROBS),
        (LOGPROBS + "y = torch.where(c, lp, lp)", Kind.LOGPROBS),
        (LOGPROBS + "y = torch.zeros(3)\nfor i in c:\n    y[i] = lp", Kind.LOGPROBS),
        (LOGPROBS + "y = 2 * lp", Kind.LOGPROBS),
        (LOGPROBS + "y = [lp, lp]", Kind.LOGPROBS),
        (OLD + "y = lp - old", Kind.LOG_RATIO),
        (OLD + "y = old - lp", Kind.LOG_RATIO),
        (OLD + "y = torch.exp(lp - old)", Kind.RATIO),
        (OLD + "y = lp.exp() / old.exp()", Kind.RATIO),
        (OLD + "y = torch.exp(lp - old).clamp(0.8, 1.2)", Kind.CLIPPED_RATIO),
        (OLD + "y = torch.exp(torch.exp(lp - old))", Kind.EXP_RATIO),
        (OLD + "y = torch.log(torch.exp(lp - old))", Kind.LOG_RATIO),
        (OLD + "y = torch.clamp(lp - old, -5, 5)", Kind.LOG_RATIO),
        ("def f(a, b, e):\n    y = torch.exp(a - b)\n    return y.clamp(1 - e, 1 + e)", Kind.RATIO),
        ("def f(a, b, e):\n    y = a / b.exp()\n    return y.clamp(1 - e, 1 + e)", Kind.RATIO),
        ("def f(a, b, e):\n    y = a - b\n    return y.exp().clamp(1 - e, 1 + e)", Kind.LOG_RATIO),
        ("for i in range(3):\n    ids = torch.cat([ids, model(ids).logits.argmax(-1)], 1)\ny = ids", Kind.SAMPLED),
        ("def f(net, x):\n    y = net(x)\n    return y[:, -1].softmax(-1)", Kind.OUTPUT),
    ],
)
def test_a_value_is(text, kind, value_of, read):
    program = read(START + text)
    value = [one for one in program.values if "y" in one.names][-1]
    known = program.kinds.of(value)
    assert known is not None
    assert known.kind is kind
    assert program.kinds.why(value)[0].startswith(f"line {value.place.line}: ")


@pytest.mark.parametrize(
    "text",
    [
        "y = rewards - rewards.mean()",
        "y = torch.exp(rewards)",
        "y = logits.std()",
        "y = logits * rewards_of(ids)",
        LOGPROBS + "y = lp * rewards_of(ids)",
        LOGPROBS + "y = lp - rewards_of(ids)",
        OLD + "y = torch.min(lp, old)",
        OLD + "y = torch.exp(lp - old) * 2",
        "y = torch.where(c, logits, ids)",
        "def f(a, b):\n    y = torch.exp(a - b)\n    return y.clamp(0, 5)",
        "def f(a, e):\n    y = a / 3\n    return y.clamp(1 - e, 1 + e)",
        "def f(logprobs, old):\n    y = logprobs - old",
        "y = fetch().logits_like",
        LOGPROBS + "x = rewards_of(ids)\nx[0] = lp\ny = x",
        LOGPROBS + "y = (ids, lp)",
        LOGPROBS + "y = {'ids': ids, 'lp': lp}",
        LOGPROBS + "def f(advantages):\n    y = lp * advantages",
        OLD + "def f(advantages):\n    y = torch.exp(lp - old).clamp(0.8, 1.2) * advantages",
        "if c:\n    x = logits\nelse:\n    x = ids\ny = x",
    ],
)
def test_a_name_or_an_unknown_operation_tells_nothing(text, read):
    program = read(START + text)
    value = [one for one in program.values if "y" in one.names][-1]
    assert program.kinds.of(value) is None


def test_very_long_sums_have_a_kind(read):
    text = START + "y = logits\n" + "y = y + 1\n" * 3000
    program = read(text)
    assert program.kinds.is_a([one for one in program.values if "y" in one.names][-1], Kind.LOGITS)

"""Log-probs that are taken row by row or token by token: from the output before each token, or from another one."""

import pytest
from doctor.illnesses.read_script import codes_in
from doctor.illnesses.small_trainer import TRAINER, indented, trainer

HEAD = "def logprobs_of(model, ids, start):\n"
BODY = TRAINER[TRAINER.index(HEAD) + len(HEAD) : TRAINER.index("def reward_fn")]
# the function's body, and what is wrong in it --> what is right
SHIFTED = {
    "rows of a batch": (
        "rows = []\nfor row in ids:\n    logits = model(row[None])[0]\n    lp = F.log_softmax(logits[start:], dim=-1)\n"
        "    rows.append(lp.gather(1, row[start:, None]).squeeze(1))\nreturn torch.stack(rows)",
        ("logits[start:]", "logits[start - 1:-1]"),
    ),
    "rows by number, cut after the softmax": (
        "out = []\nfor i in range(ids.shape[0]):\n    logits = model(ids[i:i + 1])[0]\n"
        "    lp = F.log_softmax(logits, dim=-1)\n"
        "    out.append(lp[start:].gather(-1, ids[i, start:].unsqueeze(-1)).squeeze(-1))\nreturn torch.stack(out)",
        ("lp[start:]", "lp[start - 1:-1]"),
    ),
    "counted positions": (
        "out = []\nfor i in range(len(ids)):\n    row = ids[i]\n"
        "    lp = F.log_softmax(model(row.unsqueeze(0)).squeeze(0), dim=-1)\n"
        "    out.append(lp[torch.arange(start, len(row)), row[start:]])\nreturn torch.stack(out)",
        ("torch.arange(start, len(row))", "torch.arange(start - 1, len(row) - 1)"),
    ),
    "tokens by number": (
        "out = []\nfor i in range(len(ids)):\n    lp = F.log_softmax(model(ids[i:i + 1])[0], dim=-1)\n"
        "    out.append(torch.stack([lp[t, ids[i, t]] for t in range(start, ids.shape[1])]))\nreturn torch.stack(out)",
        ("lp[t, ids", "lp[t - 1, ids"),
    ),
    "rows of logits": (
        "logits = model(ids)\nout = []\nfor i in range(len(ids)):\n    lp = F.log_softmax(logits[i, start:], dim=-1)\n"
        "    out.append(lp.gather(1, ids[i, start:, None]).squeeze(1))\nreturn torch.stack(out)",
        ("logits[i, start:]", "logits[i, start - 1:-1]"),
    ),
    "a zip": (
        "logits = model(ids)\nout = []\nfor one, row in zip(logits, ids):\n"
        "    lp = F.log_softmax(one[start:], dim=-1)\n"
        "    out.append(lp.gather(1, row[start:, None]).squeeze(1))\nreturn torch.stack(out)",
        ("one[start:]", "one[start - 1:-1]"),
    ),
    "a comprehension": (
        "logits = model(ids)\nreturn torch.stack([\n"
        "    F.log_softmax(logits[i][start:], -1).gather(1, ids[i][start:, None])[:, 0] for i in range(len(ids))\n])",
        ("logits[i][start:]", "logits[i][start - 1:-1]"),
    ),
    "a cross-entropy": (
        "out = []\nfor row in ids:\n    logits = model(row[None])[0]\n"
        "    out.append(-F.cross_entropy(logits[start:], row[start:], reduction='none'))\nreturn torch.stack(out)",
        ("logits[start:]", "logits[start - 1:-1]"),
    ),
    "one too early": (
        "out = []\nfor row in ids:\n    logits = model(row[None])[0]\n"
        "    lp = F.log_softmax(logits[start - 2:-2], dim=-1)\n"
        "    out.append(lp.gather(1, row[start:, None]).squeeze(1))\nreturn torch.stack(out)",
        ("[start - 2:-2]", "[start - 1:-1]"),
    ),
}


def scored_by(body):
    return trainer(None, None, None, (BODY, indented(body) + "\n\n"))


@pytest.mark.parametrize("form", SHIFTED)
def test_a_shift_within_a_loop_is_named(form, tmp_path):
    body, (wrong, _) = SHIFTED[form]
    assert body.count(wrong) == 1
    assert codes_in(scored_by(body), tmp_path, ("ALGN01", "ALGN03")) == {"ALGN01"}


@pytest.mark.parametrize("form", SHIFTED)
def test_a_loop_that_takes_the_output_before_each_token_is_silent(form, tmp_path):
    body, change = SHIFTED[form]
    assert codes_in(scored_by(body.replace(*change)), tmp_path, ("ALGN01", "ALGN03")) == set()

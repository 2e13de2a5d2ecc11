"""The sign between the objective and the loss, as the text of a script has it."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GRPO, with_change

LOSS = "(-gain + 0.04 * kl)"
GAIN = "gain = torch.min(ratio * advantages, clipped * advantages)"
ADVANTAGES = "(rewards - rewards.mean(dim=1, keepdim=True))"
UPDATE = GRPO[GRPO.index("    with torch.no_grad():") :]


def found(text, folder):
    return bool(codes_in(text, folder, ["LOSS01"]))


def plain(loss):
    """Strictly on-policy: log-probs times advantages, no ratio."""
    update = f"""    new = score(policy, ids, start)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    return GRPO.replace(UPDATE, update)


SICK = {
    "minus missing": with_change(LOSS, "(gain + 0.04 * kl)"),
    "minus twice": with_change(GAIN, "gain = -torch.min(ratio * advantages, clipped * advantages)"),
    "max of gains": with_change(GAIN, "gain = -torch.max(ratio * advantages, clipped * advantages)"),
    "advantage turned": with_change(ADVANTAGES, "(rewards.mean(dim=1, keepdim=True) - rewards)"),
    "advantage negated": with_change(ADVANTAGES, "-(rewards - rewards.mean(dim=1, keepdim=True))"),
    "negated loss": with_change("        loss.backward()", "        (-loss).backward()"),
    "maximised with a minus": with_change("lr=1e-6)", "lr=1e-6, maximize=True)"),
    "log-probs": plain("(new * advantages * mask).sum() / mask.sum()"),
    "negative log-probs with a minus": plain("-((-new) * advantages * mask).sum() / mask.sum()"),
    "ratio": plain("(torch.exp(new - new.detach()) * advantages * mask).sum() / mask.sum()"),
}


@pytest.mark.parametrize("form", SICK)
def test_a_wrong_sign_is_found(form, tmp_path):
    assert found(SICK[form], tmp_path)


HEALTHY = {
    "the script itself": GRPO,
    "max of losses": with_change(GAIN, "gain = -torch.max(-ratio * advantages, -clipped * advantages)"),
    "maximised": with_change(LOSS, "(gain - 0.04 * kl)").replace("lr=1e-6)", "lr=1e-6, maximize=True)"),
    "another optimizer climbs": with_change(
        "        optimizer.step()", "        optimizer.step()\n        dual.step()"
    ).replace(
        "import torch\n",
        "import torch\nlog_beta = torch.zeros((), requires_grad=True)\n"
        "dual = torch.optim.SGD([log_beta], lr=0.1, maximize=True)\n",
        1,
    ),
    "turned twice": with_change(ADVANTAGES, "(rewards.mean(dim=1, keepdim=True) - rewards)").replace(
        LOSS, "(gain + 0.04 * kl)"
    ),
    "log-probs": plain("-(new * advantages * mask).sum() / mask.sum()"),
    "negative log-probs": plain("((-new) * advantages * mask).sum() / mask.sum()"),
    "minus at the advantage": plain("(new * -advantages * mask).sum() / mask.sum()"),
    "minus in a product": plain("(-0.5 * mask * advantages * new).sum() / mask.sum()"),
    "subtracted": plain("0.0 - (new * advantages * mask).sum() / mask.sum()"),
    "an entropy-like term without an advantage": plain("(0.01 * new * mask).sum() / mask.sum()"),
    "unlikelihood": plain("(new * mask).mean()"),
    "gradients turned by hand": with_change(LOSS, "(gain - 0.04 * kl)").replace(
        "        optimizer.step()",
        "        for p in policy.parameters():\n            p.grad = -p.grad\n        optimizer.step()",
    ),
}


@pytest.mark.parametrize("form", HEALTHY)
def test_a_right_sign_is_left_alone(form, tmp_path):
    assert not found(HEALTHY[form], tmp_path)


def test_without_an_optimizer_nothing_is_said(tmp_path):
    assert not found(with_change(LOSS, "(gain + 0.04 * kl)").replace("        optimizer.step()\n", ""), tmp_path)

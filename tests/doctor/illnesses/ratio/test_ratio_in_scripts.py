"""The ratio and its clip in the text of a script: many ways to write the faults, and their healthy neighbours."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.catalogue import by_code
from assay.doctor.examples.scripts import GRPO, with_change

CODES = "RAT01 RAT02 RAT03 RAT04 RAT05 RAT06 RAT07 RAT08 CLIP01 CLIP02 LOSS01".split()
RATIO = "ratio = torch.exp(new - old)"
CLIPPED = "clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)"
GAIN = "gain = torch.min(ratio * advantages, clipped * advantages)"
SCORED = "        old = score(policy, ids, start)\n"
NO_GRAD = "    with torch.no_grad():\n" + SCORED


def found(text, folder):
    return codes_in(text, folder, CODES)


def ratio_is(text):
    return with_change(RATIO, text)


def both(*pairs):
    text = GRPO
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def loss_function(body, call="objective(new, old, advantages)"):
    """The ratio and the clip in a function of their own."""
    text = both((f"        {RATIO}\n        {CLIPPED}\n        {GAIN}\n", f"        gain = {call}\n"))
    return text.replace("for step in range(100):", f"def objective({body[0]}):\n{body[1]}\n\nfor step in range(100):")


FORMS = {
    "log-difference": ratio_is("ratio = new - old"),
    "log-difference, method": ratio_is("ratio = new.sub(old)"),
    "log-difference, function": ratio_is("ratio = torch.sub(new, old)"),
    "log-difference under the mask": ratio_is("ratio = (new - old) * mask"),
    "log-difference through a name that says otherwise": ratio_is(
        "prob_ratio = new - old\n        ratio = prob_ratio.float()"
    ),
    "exp of the log-difference clamped around one": ratio_is(
        "ratio = torch.exp(torch.clamp(new - old, 1 - 0.2, 1 + 0.2))"
    ),
    "exp twice": ratio_is("ratio = torch.exp(torch.exp(new - old))"),
    "exp twice, methods": ratio_is("ratio = (new - old).exp().exp()"),
    "exp of a quotient of probabilities": ratio_is("ratio = torch.exp(new.exp() / old.exp())"),
    "quotient of log-probs": ratio_is("ratio = new / old"),
    "quotient of log-probs, torch.div": ratio_is("ratio = torch.div(new, old)"),
    "difference of probabilities": ratio_is("ratio = new.exp() - old.exp()"),
    "expm1": ratio_is("ratio = torch.expm1(new - old)"),
    "probability of new alone": ratio_is("ratio = torch.exp(new)"),
    "log-prob minus probability": ratio_is("ratio = torch.exp(new - old.exp())"),
    "exp on the clipped side only": both(
        (CLIPPED, "clipped = torch.clamp(torch.exp(new - old), 0.8, 1.2)"), (RATIO, "ratio = new - old")
    ),
    "exp on the unclipped side only": with_change(CLIPPED, "clipped = torch.clamp(new - old, 0.8, 1.2)"),
    "exp on one branch": ratio_is("ratio = torch.exp(new - old) if step % 2 else new - old"),
    "ratio clamped around zero": with_change(CLIPPED, "clipped = torch.clamp(ratio, -0.2, 0.2)"),
    "numpy-like keywords": with_change(CLIPPED, "clipped = torch.clamp(input=new - old, min=0.8, max=1.2)"),
    "in a function": loss_function(("a, b, c", "    r = a - b\n    return torch.minimum(r * c, r.clip(0.8, 1.2) * c)")),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_ratio_that_is_none_is_found(form, tmp_path):
    assert "RAT08" in found(FORMS[form], tmp_path)


HEALTHY = {
    "the script itself": GRPO,
    "method exp": ratio_is("ratio = (new - old).exp()"),
    "quotient of probabilities": ratio_is("ratio = new.exp() / old.exp()"),
    "log-difference of negatives": ratio_is("ratio = torch.exp(-(old - new))"),
    "guarded exponent": ratio_is("ratio = torch.exp(torch.clamp(new - old, -20.0, 20.0))"),
    "guarded exponent, upper side": ratio_is("ratio = torch.exp(torch.clamp(new - old, max=10.0))"),
    "clip in log space": with_change(CLIPPED, "clipped = torch.exp(torch.clamp(new - old, -0.2, 0.2))"),
    "named like a log-ratio": both(
        (RATIO, "log_ratio = torch.exp(new - old)"),
        (CLIPPED, "clipped = torch.clamp(log_ratio, 1 - 0.2, 1 + 0.2)"),
        (GAIN, "gain = torch.min(log_ratio * advantages, clipped * advantages)"),
    ),
    "old and new named the other way round": both(
        (SCORED, "        new = score(policy, ids, start)\n"),
        (
            "        new = score(policy, ids, start)\n        ratio",
            "        old = score(policy, ids, start)\n        ratio",
        ),
        (RATIO, "ratio = torch.exp(old - new)"),
        ("kl = torch.exp(ref - new) - (ref - new) - 1", "kl = torch.exp(ref - old) - (ref - old) - 1"),
    ),
    "detached instead of no_grad": both(
        (NO_GRAD, "    old = score(policy, ids, start).detach()\n    with torch.no_grad():\n")
    ),
    "old made in the first epoch": both(
        (NO_GRAD, "    old = None\n    with torch.no_grad():\n"),
        (f"        {RATIO}", f"        if old is None:\n            old = new.detach()\n        {RATIO}"),
    ),
    "no_grad decided by a condition": both(
        (
            NO_GRAD,
            "    with torch.no_grad() if step else torch.enable_grad():\n" + SCORED + "    with torch.no_grad():\n",
        )
    ),
    "dual clip": with_change(
        GAIN, GAIN + "\n        gain = torch.where(advantages < 0, torch.max(gain, 3 * advantages), gain)"
    ),
    "clip higher": with_change(CLIPPED, "clipped = ratio.clamp(0.8, 1.28)"),
    "CISPO": with_change(GAIN, "gain = torch.clamp(ratio, max=5.0).detach() * advantages * new"),
    "SAPO": with_change(GAIN, "gain = torch.sigmoid(4.0 * (ratio - 1)) * advantages"),
    "GSPO": ratio_is("ratio = torch.exp(((new - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))"),
    "GSPO by tokens": ratio_is(
        "whole = (((new - old) * mask).sum(1) / mask.sum(1)).detach().unsqueeze(1)\n"
        "        ratio = torch.exp(new - new.detach() + whole)"
    ),
    "losses and max": both(
        (GAIN, "gain = -torch.max(-advantages * ratio, -advantages * clipped)"),
    ),
    "one update against its own copy": both(
        (RATIO, "ratio = torch.exp(new - new.detach())"), ("for epoch in range(2):", "for epoch in range(1):")
    ),
    "one update without clip": both(
        (GAIN, "gain = ratio * advantages"), ("for epoch in range(2):", "for epoch in range(1):")
    ),
    "truncated weights": both(
        ("    for epoch", "    weight = torch.exp(old - ref).clamp(max=2.0)\n    for epoch"),
        (GAIN, "gain = weight * torch.min(ratio * advantages, clipped * advantages)"),
    ),
}


@pytest.mark.parametrize("form", HEALTHY)
def test_a_healthy_ratio_is_left_alone(form, tmp_path):
    assert found(HEALTHY[form], tmp_path) == set()


INVERTED = {
    "exchanged": ratio_is("ratio = torch.exp(old - new)"),
    "method": ratio_is("ratio = (old - new).exp()"),
    "negated": ratio_is("ratio = torch.exp(-(new - old))"),
    "times minus one": ratio_is("ratio = torch.exp(-1.0 * (new - old))"),
    "quotient of probabilities": ratio_is("ratio = torch.exp(old) / torch.exp(new)"),
    "one over it": ratio_is("ratio = 1.0 / torch.exp(new - old)"),
    "torch.sub": ratio_is("ratio = torch.exp(torch.sub(old, new))"),
    "through a mask": ratio_is("delta = (old - new) * mask\n        ratio = delta.exp()"),
    "exchanged at the call": loss_function(
        ("a, b, c", "    r = torch.exp(a - b)\n    return torch.min(r * c, r.clamp(0.8, 1.2) * c)"),
        "objective(old, new, advantages)",
    ),
    "keywords exchanged at the call": loss_function(
        ("logp, logp_old, c", "    r = torch.exp(logp - logp_old)\n    return torch.min(r * c, r.clamp(0.8, 1.2) * c)"),
        "objective(c=advantages, logp=old, logp_old=new)",
    ),
}


@pytest.mark.parametrize("form", INVERTED)
def test_old_over_new_is_found(form, tmp_path):
    assert found(INVERTED[form], tmp_path) == {"RAT04"}


STUCK = {
    "own copy": ratio_is("ratio = torch.exp(new - new.detach())"),
    "own copy by a name": ratio_is("old = new.detach().clone()\n        ratio = torch.exp(new - old)"),
    "second pass in each turn": ratio_is(
        "with torch.no_grad():\n            old = score(policy, ids, start)\n        ratio = torch.exp(new - old)"
    ),
    "rows written before they are read": both(
        (f"        {RATIO}", "        old[:] = new.detach()\n        ratio = torch.exp(new - new.detach())")
    ),
}


@pytest.mark.parametrize("form", STUCK)
def test_a_ratio_that_cannot_leave_one_is_found(form, tmp_path):
    assert "RAT02" in found(STUCK[form], tmp_path)


ATTACHED = {
    "outside of no_grad": both((NO_GRAD, "    old = score(policy, ids, start)\n    with torch.no_grad():\n")),
    "the same value": ratio_is("old = new\n        ratio = torch.exp(new - old)"),
    "minus itself": ratio_is("ratio = torch.exp(new - new)"),
    "cloned, not detached": both((NO_GRAD, "    old = score(policy, ids, start).clone()\n    with torch.no_grad():\n")),
}


@pytest.mark.parametrize("form", ATTACHED)
def test_old_log_probs_with_a_gradient_are_found(form, tmp_path):
    assert "RAT03" in found(ATTACHED[form], tmp_path)


def test_log_probs_of_the_reference_in_the_denominator_are_found(tmp_path):
    assert "RAT01" in found(both((SCORED, "        old = score(reference, ids, start)\n")), tmp_path)


def test_a_temperature_on_one_side_of_the_ratio_is_found(tmp_path):
    tempered = both(
        ("def score(model, ids, start):", "def score(model, ids, start, temperature=1.0):"),
        ("[:, start - 1 : -1].float()", "[:, start - 1 : -1].float() / temperature"),
    )
    assert "RAT01" not in found(tempered, tmp_path)
    assert "RAT01" in found(tempered.replace(SCORED, "        old = score(policy, ids, start, 0.7)\n"), tmp_path)


def test_a_reference_that_samples_is_found_but_not_where_its_log_probs_are_the_denominator(tmp_path):
    sampled = ("ids = policy.generate(", "ids = reference.generate(")
    assert "RAT05" in found(both(sampled), tmp_path)
    assert "RAT05" not in found(both(sampled, (SCORED, "        old = score(reference, ids, start)\n")), tmp_path)


@pytest.mark.parametrize(
    "text", ["((new - old) * mask).sum(1, keepdim=True)", "new.sum(1, keepdim=True) - old.sum(1, keepdim=True)"]
)
def test_a_product_over_the_sequence_is_found(text, tmp_path):
    assert "RAT06" in found(ratio_is(f"ratio = torch.exp({text})"), tmp_path)


def test_the_sequence_ratio_of_leave_one_out_is_left_alone(tmp_path):
    start = GRPO.index("    advantages = (rewards")
    end = GRPO.index("    advantages = advantages.view")
    one_out = "    advantages = rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / (8 - 1)\n"
    text = GRPO[:start] + one_out + GRPO[end:]
    text = text.replace(RATIO, "ratio = torch.exp(((new - old) * mask).sum(1, keepdim=True))")
    assert "RAT06" not in found(text, tmp_path)


def test_an_importance_weight_without_a_cap_is_found(tmp_path):
    sick = by_code("RAT07").scripts.sick
    assert found(sick, tmp_path) == {"RAT07"}
    assert found(sick.replace("torch.exp(old - sampled)", "torch.exp((old - sampled).clamp(-1, 1))"), tmp_path) == set()


DEAD = {
    "unclipped on both sides": with_change(GAIN, "gain = torch.min(ratio * advantages, ratio * advantages)"),
    "never used": with_change(GAIN, "gain = ratio * advantages"),
    "result thrown away": both((CLIPPED, "torch.clamp(ratio, 1 - 0.2, 1 + 0.2)"), (GAIN, "gain = ratio * advantages")),
    "bounds too wide": with_change(CLIPPED, "clipped = torch.clamp(ratio, 1 - 200.0, 1 + 200.0)"),
}


@pytest.mark.parametrize("form", DEAD)
def test_a_clip_without_effect_is_found(form, tmp_path):
    assert "CLIP01" in found(DEAD[form], tmp_path)


WRONG_SIDE = {
    "max": with_change(GAIN, "gain = torch.max(ratio * advantages, clipped * advantages)"),
    "minus inside of min": with_change(GAIN, "gain = -torch.min(-ratio * advantages, -clipped * advantages)"),
    "bounds exchanged": with_change(CLIPPED, "clipped = torch.clamp(ratio, 1 + 0.2, 1 - 0.2)"),
    "around the product": with_change(
        GAIN, "gain = torch.min(ratio * advantages, torch.clamp(ratio * advantages, 0.8, 1.2))"
    ),
}


@pytest.mark.parametrize("form", WRONG_SIDE)
def test_a_clip_on_the_wrong_side_is_found(form, tmp_path):
    assert "CLIP02" in found(WRONG_SIDE[form], tmp_path)

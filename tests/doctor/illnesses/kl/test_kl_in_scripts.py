"""The KL to the reference in the text of a script: sign, gradient, estimator, and the reference itself."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GRPO, with_change

CODES = "KL01 KL02 KL03 KL04 KL05".split()
KL = "kl = torch.exp(ref - new) - (ref - new) - 1"
LOSS = "(-gain + 0.04 * kl)"
REFERENCE = "reference = copy.deepcopy(policy).eval().requires_grad_(False)"
ROLLOUT = "    prompts = prompts_of(step)"


def found(text, folder):
    return codes_in(text, folder, CODES)


SICK = {
    "KL01 subtracted": with_change(LOSS, "(-gain - 0.04 * kl)"),
    "KL01 inside of the brackets": with_change(LOSS, "-(gain + 0.04 * kl)"),
    "KL01 negative coefficient": with_change(LOSS, "(-gain + -0.04 * kl)"),
    "KL01 squares subtracted": with_change(KL, "kl = 0.5 * (new - ref) ** 2").replace(LOSS, "(-gain - 0.04 * kl)"),
    "KL02 detached": with_change(LOSS, "(-gain + 0.04 * kl.detach())"),
    "KL02 under no_grad": with_change(KL, f"with torch.no_grad():\n            {KL}"),
    "KL02 new detached inside": with_change(KL, "d = ref - new.detach()\n        kl = d.exp() - d - 1"),
    "KL02 of the old log-probs": with_change(KL, "kl = torch.exp(ref - old) - (ref - old) - 1"),
    "KL03 difference": with_change(KL, "kl = new - ref"),
    "KL03 negated": with_change(KL, "kl = -(ref - new)"),
    "KL03 method": with_change(KL, "kl = new.sub(ref)"),
    "KL03 called k3": with_change(KL, "k3 = new - ref\n        kl = k3"),
    "KL04 plus": with_change(KL, "kl = torch.exp(ref - new) + (ref - new) - 1"),
    "KL04 exponent turned": with_change(KL, "d = ref - new\n        kl = torch.exp(-d) - d - 1"),
    "KL04 direction": with_change(KL, "d = new - ref\n        kl = d.exp() - d - 1"),
    "KL04 negative": with_change(KL, "d = ref - new\n        kl = d - torch.expm1(d)"),
    "KL04 exponential alone": with_change(KL, "kl = torch.exp(ref - new)"),
    "KL05 two names": with_change(REFERENCE, "reference = policy"),
    "KL05 shallow copy": with_change(REFERENCE, "reference = copy.copy(policy)"),
    "KL05 its own copy": with_change(KL, "kl = torch.exp(new.detach() - new) - (new.detach() - new) - 1"),
    "KL05 renewed before each rollout": with_change(
        ROLLOUT, "    reference.load_state_dict(policy.state_dict())\n" + ROLLOUT
    ),
}


@pytest.mark.parametrize("form", SICK)
def test_a_fault_of_the_kl_is_found_and_no_other(form, tmp_path):
    assert found(SICK[form], tmp_path) == {form[:4]}


HEALTHY = {
    "the script itself": GRPO,
    "k3 under a mask that is not known as one": with_change(
        KL, "weights = rewards_of(ids)\n        d = (ref - new) * weights\n        kl = d.exp() - d - 1"
    ),
    "an optimizer that holds the wrong network": with_change("AdamW(policy.", "AdamW(reference."),
    "called k1": with_change(KL, "k1 = torch.exp(ref - new) - (ref - new) - 1\n        kl = k1"),
    "written with new - ref": with_change(KL, "d = new - ref\n        kl = torch.exp(-d) + d - 1"),
    "expm1": with_change(KL, "d = ref - new\n        kl = torch.expm1(d) - d"),
    "negative and subtracted": with_change(KL, "d = ref - new\n        kl = d - torch.expm1(d)").replace(
        LOSS, "(-gain - 0.04 * kl)"
    ),
    "squares": with_change(KL, "kl = 0.5 * (new - ref) ** 2"),
    "absolute": with_change(KL, "kl = (new - ref).abs()"),
    "a guarded exponent": with_change(KL, "d = torch.clamp(ref - new, -20.0, 20.0)\n        kl = torch.exp(d) - d - 1"),
    "none": with_change(LOSS, "(-gain)"),
    "k1 times the ratio": with_change(KL, "kl = ratio * (new.detach() - ref)"),
    "renewed now and then": with_change(
        ROLLOUT, "    if step % 50 == 0:\n        reference.load_state_dict(policy.state_dict())\n" + ROLLOUT
    ),
    "loaded twice from one checkpoint": with_change(
        REFERENCE, 'reference = AutoModelForCausalLM.from_pretrained("tiny").eval()'
    ),
    "to the policy that sampled": with_change(KL, "kl = torch.exp(new - old) - (new - old) - 1"),
    "maximised": with_change(LOSS, "(gain - 0.04 * kl)").replace("lr=1e-6)", "lr=1e-6, maximize=True)"),
    "k1 in the reward": with_change(LOSS, "(-gain)").replace(
        "    for epoch", "    advantages = advantages - 0.04 * (old - ref)\n    for epoch"
    ),
    "adapters switched off": with_change("        ref = score(reference, ids, start)\n", "").replace(
        "    for epoch",
        "    with torch.no_grad(), policy.disable_adapter():\n        ref = score(policy, ids, start)\n    for epoch",
    ),
}


@pytest.mark.parametrize("form", HEALTHY)
def test_a_healthy_kl_is_left_alone(form, tmp_path):
    assert found(HEALTHY[form], tmp_path) == set()


@pytest.mark.parametrize(
    ("term", "code"),
    [
        ("advantages + 0.04 * (old - ref)", "KL01"),
        ("advantages - 0.04 * (ref - old)", "KL04"),
    ],
)
def test_a_kl_that_is_rewarded_is_found(term, code, tmp_path):
    text = with_change(LOSS, "(-gain)").replace("    for epoch", f"    advantages = {term}\n    for epoch")
    assert found(text, tmp_path) == {code}


@pytest.mark.parametrize(
    ("call", "is_wrong"),
    [
        ("F.kl_div(ref_full, new_full)", True),
        ("F.kl_div(ref_full, new_full, log_target=True)", False),
        ("F.kl_div(ref_full, new_full.exp())", False),
        ("F.kl_div(ref_full, new_full.exp(), log_target=True)", True),
        ("F.kl_div(ref_full.exp(), new_full.exp())", True),
    ],
)
def test_what_goes_into_kl_div_is_looked_at(call, is_wrong, tmp_path):
    text = f"""
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

policy = AutoModelForCausalLM.from_pretrained("tiny")
reference = AutoModelForCausalLM.from_pretrained("tiny")

def distance(ids):
    new_full = F.log_softmax(policy(ids).logits, dim=-1)
    ref_full = F.log_softmax(reference(ids).logits, dim=-1)
    return {call}
"""
    assert ("KL04" in found(text, tmp_path)) == is_wrong


def test_a_reference_with_random_weights_is_found(tmp_path):
    text = GRPO.replace('AutoModelForCausalLM.from_pretrained("tiny")', "build()").replace(
        "copy.deepcopy(policy)", "build()"
    )
    text = text.replace(
        "policy = build", "def build():\n    return LlamaForCausalLM(LlamaConfig(hidden_size=8))\n\npolicy = build"
    ).replace("import AutoModelForCausalLM", "import LlamaConfig, LlamaForCausalLM")
    assert found(text, tmp_path) == {"KL05"}
    copied = text.replace("optimizer = torch", "reference.load_state_dict(policy.state_dict())\noptimizer = torch")
    assert found(copied, tmp_path) == set()


GIVEN = {
    "from a server": "ref = fetch(step).to(new.device)",
    "from a server, in its precision": "ref = fetch(step).to(new.dtype)",
    "from a server, in its shape": "ref = fetch(step).view(new.shape)",
    "from a server, cut to its length": "ref = fetch(step)[:, :new.shape[1]]",
}


@pytest.mark.parametrize("form", GIVEN)
def test_a_reference_that_comes_from_elsewhere_is_not_the_policy(form, tmp_path):
    text = with_change(KL, f"{GIVEN[form]}\n        {KL}").replace("import prompts_of", "import fetch, prompts_of")
    assert found(text, tmp_path) == set()


WEIGHTED = """
import torch
from transformers import AutoModelForCausalLM
policy = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
criterion = torch.nn.KLDivLoss(reduction="none", log_target=True)
def step(ids, targets, rewards, coef):
    logp = torch.log_softmax(policy(ids).logits, dim=-1)
    loss = (-rewards * criterion(logp, targets).sum(-1)).mean()
    loss.backward()
    optimizer.step()
"""


def test_a_divergence_that_rewards_weigh_is_not_a_penalty(tmp_path):
    assert not found(WEIGHTED, tmp_path)
    assert found(WEIGHTED.replace("-rewards *", "-coef *"), tmp_path) == {"KL01"}

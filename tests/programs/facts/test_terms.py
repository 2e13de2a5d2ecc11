"""A loss --> its terms with their signs."""

import pytest

from assay.programs.facts.loss.terms import MOST_TERMS, TermKind

START = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("tiny")
reference = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
ids = model.generate(prompts)
logits = model(ids).logits
new = logits.log_softmax(-1).gather(-1, ids)
old = new.detach()
with torch.no_grad():
    ref = reference(ids).logits.log_softmax(-1).gather(-1, ids)
mask = ids != 0
adv = rewards - rewards.mean()
ratio = torch.exp(new - old)
entropy = torch.distributions.Categorical(logits=logits).entropy()
k3 = torch.exp(ref - new) - (ref - new) - 1
"""
SURROGATE, POLICY, KL, ENTROPY = TermKind.SURROGATE, TermKind.POLICY, TermKind.KL, TermKind.ENTROPY


@pytest.mark.parametrize(
    ("loss", "terms"),
    [
        ("-(new * adv).mean()", [(POLICY, -1)]),
        ("(-new * adv).mean()", [(POLICY, -1)]),
        ("(new * -adv).mean()", [(POLICY, -1)]),
        ("-1 * (new * adv).mean()", [(POLICY, -1)]),
        ("(new * adv).mean()", [(POLICY, 1)]),
        ("0 - (new * adv).sum() / mask.sum()", [(POLICY, -1)]),
        ("-torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()", [(SURROGATE, -1)]),
        ("torch.max(-ratio * adv, -ratio.clamp(0.8, 1.2) * adv).mean()", [(SURROGATE, 1)]),
        ("(-ratio * adv * mask).sum() / mask.sum()", [(POLICY, -1)]),
        ("-(ratio * adv).mean() + 0.1 * k3.mean()", [(POLICY, -1), (KL, 1)]),
        ("-(ratio * adv - 0.1 * k3).mean()", [(POLICY, -1), (KL, 1)]),
        ("-(ratio * adv).mean() + 0.1 * (new - ref).mean()", [(POLICY, -1), (KL, 1)]),
        ("-(ratio * adv).mean() + 0.1 * ((new - ref) ** 2).mean()", [(POLICY, -1), (KL, 1)]),
        ("-(ratio * adv).mean() - 0.01 * entropy.mean()", [(POLICY, -1), (ENTROPY, -1)]),
        ("-(ratio * adv).mean() + ((logits - 1) ** 2).mean()", [(POLICY, -1), (TermKind.VALUE, 1)]),
        ("torch.nn.functional.smooth_l1_loss(logits, returns)", [(TermKind.VALUE, 1)]),
        ("-(ratio.detach() * adv).mean()", [(TermKind.DETACHED, -1)]),
        ("-(ratio.detach() * new * adv).mean()", [(POLICY, -1)]),
        ("(torch.nn.functional.cross_entropy(logits, ids) * adv).mean()", [(POLICY, -1)]),
        ("torch.where(mask, -ratio * adv, -new * adv).mean()", [(POLICY, -1), (POLICY, -1)]),
        ("torch.stack([(-new * adv).mean()]).sum()", [(POLICY, -1)]),
    ],
)
def test_a_loss_has_the_terms(loss, terms, read):
    ((_, found),) = read(START + f"loss = {loss}\nloss.backward()").losses
    assert [(term.kind, term.sign) for term in found if term.core.op != "constant"] == terms


@pytest.mark.parametrize(
    ("estimate", "name"),
    [
        ("new - ref", "k1"),
        ("(new - ref) ** 2", "k2"),
        ("(new - ref).square() / 2", "k2"),
        ("(new - ref) * (new - ref)", ""),
        ("torch.exp(ref - new) - (ref - new) - 1", "k3"),
        ("torch.exp(ref - new) - 1 - (ref - new)", "k3"),
        ("(ref - new).exp() + (new - ref) - 1", "k3"),
        ("torch.expm1(ref - new) - (ref - new)", "k3"),
        ("torch.exp(ref - new) + (-((ref - new) + 1))", "k3"),
        ("(new - ref).abs()", "abs"),
        ("torch.nn.functional.kl_div(new, ref)", "full"),
    ],
)
def test_an_estimate_of_the_kl_has_a_name(estimate, name, read):
    ((_, found),) = read(START + f"loss = -(ratio * adv).mean() + 0.1 * ({estimate}).mean()\nloss.backward()").losses
    assert found[0].kind is POLICY
    assert ([term.estimator for term in found if term.kind is KL] or [""]) == [name]


def test_the_sides_of_a_surrogate(read):
    program = read(START + "loss = -torch.min(ratio * adv, adv * ratio.clamp(0.8, 1.2)).mean()\nloss.backward()")
    ((_, (term,)),) = program.losses
    sides = program.terms.products(term.core)
    assert [side.is_clipped for side in sides] == [False, True]
    assert [side.factors[0].names[0] for side in sides] == ["adv", "adv"]


def test_what_weighs_the_gradient_is_found_through_the_advantages(read):
    program = read(START + "loss = -(new * adv).mean()\nloss.backward()")
    rewards = [one for one in program.values if one.place.text == "rewards.mean()"]
    assert id(rewards[-1]) in program.policy_factor_ids
    assert not [one for one in program.of("forward") if id(one) in program.policy_factor_ids]


def test_reductions_are_kept_in_order(read):
    ((_, (term,)),) = read(START + "loss = -(new * adv).sum(-1).mean()\nloss.backward()").losses
    assert [one.op for one in term.reductions] == ["mean", "sum"]


def test_a_sum_of_very_many_terms_ends(read):
    program = read(START + "loss = 0\n" + "loss = loss - (new * weigh()).mean()\n" * 800 + "loss.backward()")
    ((_, found),) = program.losses
    assert len(found) == MOST_TERMS


def test_one_thing_may_stand_in_two_terms(read):
    program = read(START + "loss = -(new * adv).mean() - (new * rewards).mean()\nloss.backward()")
    ((_, found),) = program.losses
    assert [term.factors[0].names or term.factors[0].op for term in found] == [["adv"], "library"]


def test_a_loss_that_grows_in_a_loop_has_each_term_once(read):
    program = read(START + "loss = 0\nfor i in c:\n    loss = loss * 0.9 - (new * adv).mean()\nloss.backward()")
    ((_, found),) = program.losses
    assert len([term for term in found if term.kind is POLICY]) <= 2


def test_a_loss_is_listed_once(read):
    assert len(read(START + "loss = new.mean()\nloss.backward()\nloss.backward()").losses) == 1

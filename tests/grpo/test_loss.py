"""policy_loss as a whole: hand-worked values and gradients of every objective, the KL, the entropy bonus, the errors.

Everything is reached through the name `grpo`, so that the mutant test can put a mutated module in its place.
"""

import math

import pytest
import torch

import assay.grpo as grpo
from assay.config import LossConfig
from assay.types import Totals

NAN = float("nan")

# row 0: three tokens, A = 1, ratios 1.5, 0.5, 1; row 1: one token, A = -2, ratio 1.1
RATIO = torch.tensor([[1.5, 0.5, 1.0], [1.1, 7.0, 7.0]], dtype=torch.float64)
OLD = torch.full((2, 3), -1.0, dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, False, False]])
ADVANTAGES = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]], dtype=torch.float64)
TOTALS = Totals(sequences=4, tokens=8, share_of_rollout_tokens=10.0, max_tokens=6)  # a second micro-batch has the rest
SEQUENCE_RATIO = 0.75 ** (1 / 3)  # (1.5 * 0.5 * 1)^(1/3)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def loss_and_gradient(settings, **more):
    """policy_loss on the batch above and the gradient of its total with respect to the new log-probs."""
    new = (OLD + RATIO.log()).requires_grad_()
    batch = {"old_BT": OLD, "advantages_BT": ADVANTAGES, "mask_BT": MASK, "totals": TOTALS, **more}
    loss = grpo.policy_loss(new_BT=new, settings=settings, **batch)
    (gradient,) = torch.autograd.grad(loss.total, new, retain_graph=True)
    return loss, gradient


def assert_values(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, tensor(expected), rtol=tolerance, atol=tolerance)


# with bounds 0.8 and 1.3 the token losses are -1.3, -0.5, -1 and 2.2; the first is clipped and has no gradient
@pytest.mark.parametrize(
    ("objective", "total", "gradient"),
    [
        ("grpo", -2.8 / 12 + 2.2 / 4, [[0, -0.5 / 12, -1 / 12], [2.2 / 4, 0, 0]]),
        ("bnpo", -0.6 / 8, [[0, -0.5 / 8, -1 / 8], [2.2 / 8, 0, 0]]),
        ("dr_grpo", -0.6 / 24, [[0, -0.5 / 24, -1 / 24], [2.2 / 24, 0, 0]]),
        ("dapo", -0.6 / 10, [[0, -0.5 / 10, -1 / 10], [2.2 / 10, 0, 0]]),
        ("gspo", -SEQUENCE_RATIO / 4 + 2.2 / 4, [[-SEQUENCE_RATIO / 12] * 3, [2.2 / 4, 0, 0]]),
    ],
)
def test_the_clipped_losses_by_hand(objective, total, gradient):
    loss, actual = loss_and_gradient(LossConfig(objective=objective, clip_low=0.2, clip_high=0.3))
    assert_values(loss.total.detach(), total)
    assert_values(actual, gradient)
    assert loss.clipped_BT.tolist() == [[objective != "gspo", False, False], [False, False, False]]


def test_gspo_clips_a_whole_row_at_once():
    loss, gradient = loss_and_gradient(
        LossConfig(objective="gspo", clip_low=0.05, clip_high=0.05), advantages_BT=-ADVANTAGES
    )
    # row 0: A = -1, ratio 0.909 below 0.95; row 1: A = 2, ratio 1.1 above 1.05
    assert_values(loss.total.detach(), 0.95 / 4 - 2.1 / 4)
    assert torch.equal(gradient, torch.zeros_like(gradient))
    assert loss.clipped_BT.tolist() == MASK.tolist()


def test_cispo_by_hand():
    loss, gradient = loss_and_gradient(LossConfig(objective="cispo", cispo_max=1.2))
    # -min(r, 1.2) A log new / 10
    terms = [-1.2 * (math.log(1.5) - 1), -0.5 * (math.log(0.5) - 1), 1.0, 2.2 * (math.log(1.1) - 1)]
    assert_values(loss.total.detach(), sum(terms) / 10)
    assert_values(gradient, [[-0.12, -0.05, -0.1], [0.22, 0, 0]])
    assert loss.clipped_BT.tolist() == [[True, False, False], [False, False, False]]


def test_sapo_by_hand():
    loss, gradient = loss_and_gradient(LossConfig(objective="sapo", sapo_positive=2.0, sapo_negative=0.5))

    def gate(ratio, temperature):
        return 4 / temperature / (1 + math.exp(-temperature * (ratio - 1)))

    def slope(ratio, temperature):  # d gate / d log ratio = 4 sigmoid (1 - sigmoid) r
        sigmoid = 1 / (1 + math.exp(-temperature * (ratio - 1)))
        return 4 * sigmoid * (1 - sigmoid) * ratio

    row0 = [-gate(ratio, 2.0) / 12 for ratio in (1.5, 0.5, 1.0)]
    assert_values(loss.total.detach(), sum(row0) + 2 * gate(1.1, 0.5) / 4)
    assert_values(gradient, [[-slope(ratio, 2.0) / 12 for ratio in (1.5, 0.5, 1.0)], [2 * slope(1.1, 0.5) / 4, 0, 0]])


def test_process_advantages_may_differ_from_token_to_token():
    advantages = tensor([[1.0, -1.0, 3.0], [-2.0, NAN, NAN]])
    loss, _ = loss_and_gradient(LossConfig(objective="bnpo", clip_low=0.2, clip_high=0.3), advantages_BT=advantages)
    # -1.3, then min(-0.5, -0.8) = -0.8, then 3, then 2.2
    assert_values(loss.total.detach(), (-1.3 + 0.8 - 3 + 2.2) / 8)


# ---------------------------------------------------------------- KL in the loss

REF = OLD + torch.tensor([[3.0, 0.25, 1.0], [2.2, NAN, NAN]], dtype=torch.float64).log()  # new / ref 1/2, 2, 1, 1/2
TWICE, HALF = math.log(2) - 1 / 2, 1 - math.log(2)  # k3 where new is twice, half as likely as ref
FLAT = torch.zeros_like(ADVANTAGES)


def test_the_naive_kl_has_the_gradient_of_the_estimate_alone():
    settings = LossConfig(objective="bnpo", kl_coef=0.1, kl_gradient="naive")
    loss, gradient = loss_and_gradient(settings, ref_BT=REF, advantages_BT=FLAT)
    assert_values(loss.total.detach(), 0.1 * (HALF + TWICE + 0 + HALF) / 8)
    # d k3 / d new = 1 - ref / new
    assert_values(gradient, [[0.1 * (1 - 2) / 8, 0.1 * (1 - 1 / 2) / 8, 0], [0.1 * (1 - 2) / 8, 0, 0]])


def test_the_unbiased_kl_is_weighed_by_the_ratio_and_its_gradient_flows_through_it():
    settings = LossConfig(objective="bnpo", kl_coef=0.1, kl_gradient="unbiased")
    loss, gradient = loss_and_gradient(settings, ref_BT=REF, advantages_BT=FLAT)
    assert_values(loss.total.detach(), 0.1 * (1.5 * HALF + 0.5 * TWICE + 1.1 * HALF) / 8)
    # d (r k3) / d new = r (k3 + 1 - ref / new)
    row0 = [0.1 * 1.5 * (HALF - 1) / 8, 0.1 * 0.5 * (TWICE + 1 / 2) / 8, 0]
    assert_values(gradient, [row0, [0.1 * 1.1 * (HALF - 1) / 8, 0, 0]])


def test_under_gspo_the_unbiased_kl_is_weighed_by_the_ratio_of_the_sequence():
    loss, _ = loss_and_gradient(LossConfig(objective="gspo", kl_coef=0.1), ref_BT=REF, advantages_BT=FLAT)
    assert_values(loss.total.detach(), 0.1 * (SEQUENCE_RATIO * (HALF + TWICE) / 12 + 1.1 * HALF / 4))


@pytest.mark.parametrize(("estimator", "values"), [("k1", [-1, 1, 0, -1]), ("k2", [1, 1, 0, 1])])
def test_the_kl_term_uses_the_estimator_of_the_settings(estimator, values):
    settings = LossConfig(objective="bnpo", kl_coef=0.1, kl_gradient="naive", kl_estimator=estimator)
    loss, _ = loss_and_gradient(settings, ref_BT=REF)
    unit = math.log(2) if estimator == "k1" else math.log(2) ** 2 / 2
    assert_values(loss.kl, 0.1 * unit * sum(values) / 8)


def test_kl_taken_off_the_reward_is_not_in_the_loss_and_needs_no_reference_here():
    plain, _ = loss_and_gradient(LossConfig(objective="bnpo"))
    for reference in ({"ref_BT": REF}, {}):
        loss, _ = loss_and_gradient(LossConfig(objective="bnpo", kl_coef=0.1, kl_placement="reward"), **reference)
        assert loss.total.item() == plain.total.item()
        assert loss.kl.item() == 0.0


def exact_kl_gradients(**settings):
    """Gradients with respect to the logits of a 4-way softmax: of the KL term of policy_loss averaged over every
    outcome of old, and of the true KL(new || ref). old = (1/2, 1/4, 1/8, 1/8) is 8 equally likely rows."""
    logits = tensor([0.3, -0.2, 0.5, 0.1]).requires_grad_()
    new = logits.log_softmax(0)
    ref = tensor([0.1, 0.2, 0.3, 0.4]).log()
    outcomes = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])
    old = tensor([1 / 2, 1 / 4, 1 / 8, 1 / 8]).log()
    loss = grpo.policy_loss(
        new_BT=new[outcomes].unsqueeze(1),
        old_BT=old[outcomes].unsqueeze(1),
        ref_BT=ref[outcomes].unsqueeze(1),
        advantages_BT=torch.zeros(8, 1, dtype=torch.float64),
        mask_BT=torch.ones(8, 1, dtype=torch.bool),
        totals=Totals(8, 8, 8.0, 1),
        settings=LossConfig(objective="bnpo", kl_coef=1.0, **settings),
    )
    divergence = (new.exp() * (new - ref)).sum()
    (term,) = torch.autograd.grad(loss.total, logits, retain_graph=True)
    (true,) = torch.autograd.grad(divergence, logits)
    return term, true, loss.kl.item(), divergence.item()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_over_all_outcomes_of_old_the_unbiased_kl_is_the_kl_and_so_is_its_gradient(estimator):
    term, true, value, divergence = exact_kl_gradients(kl_estimator=estimator, kl_gradient="unbiased")
    assert value == pytest.approx(divergence, abs=1e-12)
    torch.testing.assert_close(term, true, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_over_all_outcomes_of_old_the_gradient_of_the_naive_kl_is_another_one(estimator):
    term, true, _, _ = exact_kl_gradients(kl_estimator=estimator, kl_gradient="naive")
    assert (term - true).norm() > 0.1 * true.norm()


def fresh_kl_gradients(estimator, way):
    """Gradients with respect to the logits of a 4-way softmax, averaged over every outcome of new itself: of the KL
    term, as `way` puts it, and the true one, p (log p - log q - KL(p || q)) by hand."""
    logits = tensor([0.3, -0.2, 0.5, 0.1]).requires_grad_()
    new, ref = logits.log_softmax(0), tensor([0.1, 0.2, 0.3, 0.4]).log()
    p = new.detach().exp()
    ones = torch.ones(1, 4, dtype=torch.bool)
    settings = LossConfig(
        objective="bnpo",
        kl_coef=1.0,
        kl_placement="reward" if way == "reward" else "loss",
        kl_estimator=estimator,
        kl_gradient=way if way != "reward" else "unbiased",
    )
    terms = []
    for outcome in range(4):
        mask = ones[:, :1]
        old, reference = new[outcome].detach().reshape(1, 1), ref[outcome].reshape(1, 1)
        penalty = grpo.sequence_kl(old, reference, mask, estimator) if way == "reward" else torch.zeros(1)
        loss = grpo.policy_loss(
            new_BT=new[outcome].reshape(1, 1),
            old_BT=old,
            ref_BT=reference,
            advantages_BT=-penalty.double().reshape(1, 1),
            mask_BT=mask,
            totals=Totals(1, 1, 1.0, 1),
            settings=settings,
        )
        terms.append(torch.autograd.grad(loss.total, logits, retain_graph=True)[0])
    d = new.detach() - ref
    return (p.unsqueeze(1) * torch.stack(terms)).sum(dim=0), p * (d - (p * d).sum())


@pytest.mark.parametrize(
    ("estimator", "way"), [("k1", "reward"), ("k1", "unbiased"), ("k2", "naive"), ("k3", "unbiased")]
)
def test_on_fresh_samples_these_have_the_gradient_of_the_kl(estimator, way):
    got, true = fresh_kl_gradients(estimator, way)
    torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "way"), [("k2", "reward"), ("k3", "reward"), ("k2", "unbiased"), ("k3", "naive")]
)
def test_on_fresh_samples_these_have_another_gradient_than_the_kl(estimator, way):
    got, true = fresh_kl_gradients(estimator, way)
    assert (got - true).norm() > 0.1 * true.norm()


# ---------------------------------------------------------------- entropy bonus and engine mismatch

ENTROPY = torch.tensor([[0.5, 1.0, 1.5], [2.0, NAN, NAN]], dtype=torch.float64)


@pytest.mark.parametrize("objective", sorted(grpo.OBJECTIVES))
def test_the_entropy_bonus_is_the_mean_over_the_tokens_of_the_update_whatever_the_objective(objective):
    plain, _ = loss_and_gradient(LossConfig(objective=objective))
    entropy = ENTROPY.clone().requires_grad_()
    loss, _ = loss_and_gradient(LossConfig(objective=objective, entropy_coef=0.01), entropy_BT=entropy)
    assert_values(loss.entropy, -0.01 * 5 / 8)
    assert_values(loss.total.detach(), plain.total.item() - 0.01 * 5 / 8)
    (gradient,) = torch.autograd.grad(loss.total, entropy)
    assert_values(gradient, [[-0.01 / 8] * 3, [-0.01 / 8, 0, 0]])


# old / sampler: 4, 1/2, 1 and not reported
SAMPLER = OLD - torch.tensor([[4.0, 0.5, 1.0], [NAN, NAN, NAN]], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"correction": "token"}, [[2, 0.5, 1], [1, 1, 1]]),
        ({"correction": "token", "correction_mode": "mask"}, [[0, 0.5, 1], [1, 1, 1]]),
        ({"correction": "token", "correction_low": 0.7, "correction_high": 9.0}, [[4, 0.7, 1], [1, 1, 1]]),
        ({"correction": "sequence", "correction_high": 1.5}, [[1.5, 1.5, 1.5], [1, 1, 1]]),
        ({"correction": "geometric", "correction_high": 9.0}, [[2 ** (1 / 3)] * 3, [1, 1, 1]]),
        ({"correction": "off"}, [[1, 1, 1], [1, 1, 1]]),
    ],
)
def test_mismatch_weights_multiply_the_objective_but_not_the_kl(settings, weights):
    settings = LossConfig(objective="bnpo", clip_low=0.2, clip_high=0.3, kl_coef=0.1, **settings)
    loss, gradient = loss_and_gradient(settings, sampler_BT=SAMPLER, ref_BT=REF)
    without_kl, kl_only = loss_and_gradient(LossConfig(objective="bnpo", kl_coef=0.1), ref_BT=REF, advantages_BT=FLAT)
    assert_values(loss.weight_BT, weights)
    assert_values(loss.policy, (weights[0][0] * -1.3 + weights[0][1] * -0.5 + weights[0][2] * -1 + 2.2) / 8)
    assert_values(loss.kl, without_kl.kl.item())
    policy_gradient = tensor([[0, weights[0][1] * -0.5 / 8, weights[0][2] * -1 / 8], [2.2 / 8, 0, 0]])
    torch.testing.assert_close(gradient, policy_gradient + kl_only, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- what comes back, what is refused, what can be added


def test_the_total_is_the_sum_of_its_parts_and_the_only_one_with_a_gradient():
    settings = LossConfig(objective="grpo", kl_coef=0.1, entropy_coef=0.01, correction="token")
    entropy = ENTROPY.clone().requires_grad_()
    loss, _ = loss_and_gradient(settings, ref_BT=REF, entropy_BT=entropy, sampler_BT=SAMPLER)
    assert loss.total.item() == (loss.policy + loss.kl + loss.entropy).item()
    assert min(abs(part.item()) for part in (loss.policy, loss.kl, loss.entropy)) > 0
    assert loss.total.requires_grad
    facts = (loss.policy, loss.kl, loss.entropy, loss.ratio_BT, loss.clipped_BT, loss.weight_BT)
    assert not any(fact.requires_grad for fact in facts)
    assert_values(loss.ratio_BT[MASK], [1.5, 0.5, 1.0, 1.1])


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"kl_coef": 0.1}, "kl_coef > 0 needs the reference's log-probs"),
        ({"correction": "token"}, "correction needs the sampler's log-probs"),
        ({"entropy_coef": 0.1}, "entropy_coef > 0 needs the entropies"),
    ],
)
def test_a_term_without_its_input_is_refused_by_name(settings, missing):
    with pytest.raises(ValueError, match=missing):
        loss_and_gradient(LossConfig(**settings))


def test_an_unknown_objective_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"loss\.objective = 'grop' is not one of .*dr_grpo"):
        loss_and_gradient(LossConfig(objective="grop"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logprobs_in_half_precision_are_refused_because_no_ratio_survives_them(dtype):
    with pytest.raises(ValueError, match="too few for a ratio"):
        loss_and_gradient(LossConfig(), old_BT=OLD.to(dtype))


def test_a_mask_that_is_not_bool_is_refused():
    with pytest.raises(RuntimeError, match="bool"):
        loss_and_gradient(LossConfig(), mask_BT=MASK.long())


def test_float32_inputs_give_a_float32_loss():
    new = (OLD + RATIO.log()).float().requires_grad_()
    loss = grpo.policy_loss(
        new_BT=new,
        old_BT=OLD.float(),
        advantages_BT=ADVANTAGES.float(),
        mask_BT=MASK,
        totals=TOTALS,
        settings=LossConfig(objective="dapo", clip_low=0.2, clip_high=0.3),
    )
    assert loss.total.dtype == torch.float32
    assert loss.total.item() == pytest.approx(-0.06, abs=1e-7)


def test_a_new_objective_is_one_registered_function():
    @grpo.objective("plain", level="token", aggregation="token_mean")
    def plain(ratio_BT, advantages_BT, new_BT, settings):
        return -ratio_BT * advantages_BT, ratio_BT > 0

    try:
        loss, gradient = loss_and_gradient(LossConfig(objective="plain"))
    finally:
        del grpo.OBJECTIVES["plain"]
    assert_values(loss.total.detach(), (-1.5 - 0.5 - 1 + 2.2) / 8)
    assert_values(gradient, [[-1.5 / 8, -0.5 / 8, -1 / 8], [2.2 / 8, 0, 0]])
    assert loss.clipped_BT.tolist() == MASK.tolist(), "it calls every token clipped; only loss tokens count"
    assert plain(RATIO, ADVANTAGES, RATIO, None)[0].shape == RATIO.shape, "the decorator returns the function itself"

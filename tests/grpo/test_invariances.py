"""What must not change the loss, and what its gradient must be, for every objective.

Everything is reached through the name `grpo`, so that the mutant test can put a mutated module in its place.
"""

import pytest
import torch

import assay.grpo as grpo
from assay.config import LossConfig
from assay.types import Totals

NAN, INF = float("nan"), float("inf")
OBJECTIVES = sorted(grpo.OBJECTIVES)
LENGTHS = (5, 2, 7, 1, 3, 0, 4, 6)  # one row has no token in the loss
INPUTS = ("new_BT", "old_BT", "advantages_BT", "sampler_BT", "ref_BT", "entropy_BT")
KL = {
    "no KL": {},
    "k1 unbiased": {"kl_coef": 0.3, "kl_estimator": "k1"},
    "k2 naive": {"kl_coef": 0.3, "kl_estimator": "k2", "kl_gradient": "naive"},
    "k2 unbiased": {"kl_coef": 0.3, "kl_estimator": "k2"},
    "k3 naive": {"kl_coef": 0.3, "kl_gradient": "naive"},
    "k3 unbiased": {"kl_coef": 0.3},
}


def make_batch(dtype=torch.float64, lengths=LENGTHS, spread=0.3):
    """Random tensors of a policy `spread` away from old, with holes in the mask as tool outputs leave them."""
    generator = torch.Generator().manual_seed(11)
    shape = (len(lengths), max(lengths))

    def normal(scale):
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    old = -1.5 + normal(0.5)
    batch = {
        "new_BT": old + normal(spread),
        "old_BT": old,
        "advantages_BT": normal(1.0)[:, :1].expand(shape).clone(),
        "sampler_BT": old + normal(0.2),
        "ref_BT": old + normal(0.3),
        "entropy_BT": normal(1.0).abs(),
    }
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    mask[0, 2] = mask[2, 0] = False
    return {**{name: values.to(dtype) for name, values in batch.items()}, "mask_BT": mask}


def totals_of(batch):
    tokens = int(batch["mask_BT"].sum())
    return Totals(sequences=len(batch["mask_BT"]), tokens=tokens, share_of_rollout_tokens=tokens / 1.7, max_tokens=9)


def everything(objective, correction="token"):
    """Settings under which every input matters; the bounds are tight enough to bite."""
    return LossConfig(
        objective=objective,
        clip_high=0.25,
        dual_clip=1.6,
        delta=1.5,
        cispo_max=1.3,
        kl_coef=0.1,
        entropy_coef=0.05,
        correction=correction,
        correction_high=1.2,
    )


def run(batch, settings, totals=None):
    """The loss, and the gradients with respect to the new log-probs and the entropies."""
    new, entropy = (batch[name].clone().requires_grad_() for name in ("new_BT", "entropy_BT"))
    inputs = {**batch, "new_BT": new, "entropy_BT": entropy}
    loss = grpo.policy_loss(**inputs, totals=totals or totals_of(batch), settings=settings)
    gradients = torch.autograd.grad(loss.total, (new, entropy), allow_unused=True)
    return loss, *gradients


def take(batch, rows, columns=slice(None)):
    return {name: values[rows][:, columns] for name, values in batch.items()}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("correction", ["token", "sequence", "geometric"])
def test_whatever_stands_under_the_mask_leaves_every_bit_of_loss_and_gradient_alone(objective, correction):
    batch, settings = make_batch(), everything(objective, correction)
    loss, *gradients = run(batch, settings)
    for junk in (NAN, INF, -INF, 1e30):
        for names in (*[(name,) for name in INPUTS], INPUTS):
            dirty = {**batch, **{name: batch[name].masked_fill(~batch["mask_BT"], junk) for name in names}}
            dirty_loss, *dirty_gradients = run(dirty, settings)
            assert torch.equal(dirty_loss.total, loss.total), (junk, names)
            assert all(map(torch.equal, dirty_gradients, gradients)), (junk, names)
            assert torch.equal(dirty_loss.clipped_BT, loss.clipped_BT)
            assert torch.equal(dirty_loss.weight_BT, loss.weight_BT)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_masked_tokens_get_no_gradient_and_count_nowhere_as_clipped(objective):
    batch = make_batch(spread=2.0)
    loss, gradient, entropy_gradient = run(batch, everything(objective))
    assert not gradient[~batch["mask_BT"]].any()
    assert not entropy_gradient[~batch["mask_BT"]].any()
    expected = torch.full_like(entropy_gradient, -0.05 / totals_of(batch).tokens)[batch["mask_BT"]]
    torch.testing.assert_close(entropy_gradient[batch["mask_BT"]], expected, rtol=1e-12, atol=0)
    assert not loss.clipped_BT[~batch["mask_BT"]].any()
    assert loss.clipped_BT.any() == (objective != "sapo")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_columns_and_rows_without_loss_tokens_change_nothing_while_the_totals_stand(objective):
    batch, settings = make_batch(), everything(objective)
    rows, columns = batch["mask_BT"].shape
    padded = {name: torch.full((rows + 2, columns + 3), NAN, dtype=torch.float64) for name in INPUTS}
    padded["mask_BT"] = torch.zeros(rows + 2, columns + 3, dtype=torch.bool)
    for name, values in padded.items():
        values[1 : rows + 1, 1 : columns + 1] = batch[name]  # padding on all four sides
    loss, gradient, _ = run(batch, settings)
    padded_loss, padded_gradient, _ = run(padded, settings, totals_of(batch))
    torch.testing.assert_close(padded_loss.total, loss.total, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(padded_gradient[1 : rows + 1, 1 : columns + 1], gradient, rtol=1e-12, atol=1e-14)
    assert torch.equal(padded_gradient[0], torch.zeros(columns + 3, dtype=torch.float64))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_order_of_rows_does_not_matter(objective):
    batch, settings = make_batch(), everything(objective)
    order = [3, 0, 7, 5, 1, 6, 2, 4]
    loss, gradient, _ = run(batch, settings)
    shuffled_loss, shuffled_gradient, _ = run(take(batch, order), settings)
    torch.testing.assert_close(shuffled_loss.total, loss.total, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(shuffled_gradient, gradient[order], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_cutting_the_batch_into_micro_batches_of_unequal_lengths_changes_nothing(objective, dtype, tolerance):
    batch, settings = make_batch(dtype), everything(objective, "sequence")
    totals = totals_of(batch)
    whole, *whole_gradients = run(batch, settings)
    for cuts in ([8], [3, 5], [4, 4], [1, 2, 2, 3], [5, 1, 1, 1]):
        total = torch.zeros((), dtype=dtype)
        gradients = [torch.zeros_like(gradient) for gradient in whole_gradients]
        first = 0
        for size in cuts:
            rows = slice(first, first + size)
            longest = max(*LENGTHS[rows], 1)  # each micro-batch is padded to its own longest row
            loss, *parts = run(take(batch, rows, slice(longest)), settings, totals)
            total += loss.total.detach()
            for gradient, part in zip(gradients, parts, strict=True):
                gradient[rows, :longest] = part
            first += size
        torch.testing.assert_close(total, whole.total.detach(), rtol=0, atol=tolerance)
        for gradient, whole_gradient in zip(gradients, whole_gradients, strict=True):
            torch.testing.assert_close(gradient, whole_gradient, rtol=0, atol=tolerance)


# ---------------------------------------------------------------- gradients


def differentiable_value(batch, settings, new):
    """The function whose derivative the gradient must be. cispo's weight is a constant by definition, so that its
    policy part is rewritten here with the weight frozen at the batch's own ratio."""
    loss = grpo.policy_loss(**{**batch, "new_BT": new}, totals=totals_of(batch), settings=settings)
    if settings.objective != "cispo":
        return loss.total.item()
    mask, totals = batch["mask_BT"], totals_of(batch)
    frozen = (batch["new_BT"] - batch["old_BT"]).exp().clamp(max=settings.cispo_max)
    tokens = -frozen * batch["advantages_BT"] * new / totals.share_of_rollout_tokens
    return (loss.total - loss.policy + tokens[mask].sum()).item()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kl", KL)
def test_the_gradient_is_the_slope_measured_by_finite_differences(objective, kl):
    batch = make_batch(lengths=(4, 0, 2, 3))
    settings = LossConfig(objective=objective, clip_high=0.25, cispo_max=1.3, dual_clip=1.6, delta=1.5, **KL[kl])
    _, gradient, _ = run(batch, settings)
    step = 1e-6
    measured = torch.zeros_like(gradient)
    for row, column in batch["mask_BT"].nonzero().tolist():
        values = []
        for direction in (step, -step):
            moved = batch["new_BT"].clone()
            moved[row, column] += direction
            values.append(differentiable_value(batch, settings, moved))
        measured[row, column] = (values[0] - values[1]) / (2 * step)
    torch.testing.assert_close(gradient, measured, rtol=1e-6, atol=1e-8)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "cispo"])
def test_autograd_passes_gradcheck_where_the_loss_has_no_constant_inside(objective):
    batch = make_batch(lengths=(3, 1, 2))
    settings = LossConfig(objective=objective, clip_high=0.25, kl_coef=0.3, entropy_coef=0.05)
    new, entropy = (batch[name].clone().requires_grad_() for name in ("new_BT", "entropy_BT"))

    def total(new, entropy):
        inputs = {**batch, "new_BT": new, "entropy_BT": entropy}
        return grpo.policy_loss(**inputs, totals=totals_of(batch), settings=settings).total

    assert torch.autograd.gradcheck(total, (new, entropy), raise_exception=False)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_on_policy_every_objective_has_the_gradient_of_reinforce(objective):
    batch = make_batch(spread=0.0)
    loss, gradient, _ = run(batch, LossConfig(objective=objective))
    totals, mask = totals_of(batch), batch["mask_BT"]
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    denominator = {
        "bnpo": totals.tokens,
        "dr_grpo": totals.sequences * totals.max_tokens,
        "dapo": totals.share_of_rollout_tokens,
        "cispo": totals.share_of_rollout_tokens,
    }.get(objective, totals.sequences * lengths)
    reinforce = (-batch["advantages_BT"] / denominator).masked_fill(~mask, 0.0)
    torch.testing.assert_close(gradient, reinforce, rtol=1e-12, atol=1e-14)
    assert torch.equal(loss.ratio_BT, torch.ones_like(loss.ratio_BT))
    assert not loss.clipped_BT.any()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_one_step_down_the_gradient_raises_the_logprobs_of_better_answers(objective, spread):
    # a real softmax: 6 answers of 4 tokens over a vocabulary of 5
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 4, 5, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(5, (6, 4), generator=generator)
    advantages = grpo.group_advantages(torch.tensor([[1.0, 0, 0], [0.5, 0, 1]], dtype=torch.float64))
    advantages = advantages.reshape(6, 1).expand(6, 4)

    def logprobs():
        return logits.log_softmax(2).gather(2, targets.unsqueeze(2)).squeeze(2)

    before = logprobs()
    old = before.detach() + spread * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    loss = grpo.policy_loss(
        new_BT=before,
        old_BT=old,
        advantages_BT=advantages,
        mask_BT=torch.ones(6, 4, dtype=torch.bool),
        totals=Totals(6, 24, 24.0, 4),
        settings=LossConfig(objective=objective),
    )
    (gradient,) = torch.autograd.grad(loss.total, logits)
    with torch.no_grad():
        logits -= 0.1 * gradient
    assert (advantages * logprobs()).mean() > (advantages * before).mean() + 1e-4


def test_rows_without_advantage_pull_on_nothing_but_the_kl():
    batch = make_batch()
    batch["advantages_BT"].zero_()
    for objective in OBJECTIVES:
        loss, gradient, _ = run(batch, LossConfig(objective=objective))
        assert loss.total.item() == 0.0
        assert not gradient.any()
        assert run(batch, LossConfig(objective=objective, kl_coef=0.1))[1].any()

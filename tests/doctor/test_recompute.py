"""What the doctor computes again: hand-worked numbers, torch's own gradients, every variant told from the others."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from assay import grpo
from assay.config.sections import LossConfig
from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.recompute import (
    advantages,
    gradients,
    loss,
    nearest_advantages,
    nearest_kl,
    nearest_loss,
    nearest_ratio,
    terms,
)
from assay.doctor.recompute.advantages import centring, groups_of, has_whole_groups, row_advantages
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.loss import aggregation_of, is_part, surrogates, weights
from assay.doctor.recompute.match import Variant, distance, nearest, tolerance
from assay.doctor.recompute.terms import totals
from assay.record.batch import Batch
from assay.verdict import Missing

REWARDS = [1.0, 0.0, 0.0, 0.0, 0.3, 0.9, 0.1, 0.2, 1.0, 1.0, 0.0, 0.5]
IDS = [0] * 4 + [1] * 4 + [2] * 4
CONFIGURED = {"baseline": "mean", "std": "sample", "scale": "group", "combine": "sum", "advantage_epsilon": 1e-4}


def batch_of(values, rewards=REWARDS, ids=IDS, **settings):
    return Batch.of({"rewards": rewards, "group_ids": ids, "advantages": values, **settings})


def grouped(function, rewards=REWARDS):
    return np.concatenate([function(np.array(rewards[start : start + 4])) for start in (0, 4, 8)])


def z(r, ddof=1, epsilon=1e-4):
    return (r - r.mean()) / (r.std(ddof=ddof) + epsilon)


# ---------------------------------------------------------------- advantages


def test_advantages_by_hand_in_groups_of_unequal_size():
    batch = batch_of([0.0] * 5, rewards=[1.0, 0.0, 3.0, 0.0, 0.0], ids=[7, 7, 9, 9, 9], std="none")
    np.testing.assert_allclose(advantages(batch), [0.5, -0.5, 2.0, -1.0, -1.0])


def test_an_unscored_rollout_has_no_part_in_mean_and_std():
    batch = batch_of([0.0] * 4, rewards=[1.0, np.nan, 0.0, np.nan], ids=[0] * 4, std="population", advantage_epsilon=0)
    np.testing.assert_allclose(advantages(batch), [1.0, 0.0, -1.0, 0.0])


def test_rows_of_a_group_need_not_stand_together():
    batch = batch_of([0.0] * 4, rewards=[1.0, 5.0, 0.0, 9.0], ids=[0, 1, 0, 1], std="none")
    np.testing.assert_allclose(advantages(batch), [0.5, -2.0, -0.5, 2.0])


ALL = np.array(REWARDS)
NAMED = {
    "over the sample std of the group": grouped(z),
    "over the population std of the group": grouped(lambda r: z(r, ddof=0)),
    "over the sample std of the group + 1e-08": grouped(lambda r: z(r, epsilon=1e-8)),
    "over no std (Dr. GRPO)": grouped(lambda r: r - r.mean()),
    "over no std (RLOO)": grouped(lambda r: (r - r.mean()) * 4 / 3),
    "over the sample std of the batch": grouped(lambda r: r - r.mean()) / (ALL.std(ddof=1) + 1e-4),
    "times 0.7 for all rows": grouped(lambda r: r - r.mean()) * 0.7,
    "mean of the whole batch, over its sample std": z(ALL),
    "mean of the whole batch, over its population std": z(ALL, ddof=0),
    "reward - mean of the whole batch": ALL - ALL.mean(),
    "the rewards themselves": ALL,
    "over the sample std of the group, not centred": grouped(lambda r: r / (r.std(ddof=1) + 1e-4)),
    "over the population std of the batch, not centred": ALL / (ALL.std() + 1e-4),
    "parentheses are missing": grouped(lambda r: r - r.mean() / (r.std(ddof=1) + 1e-4)),
    "variance in the place of the std": grouped(lambda r: (r - r.mean()) / (r.var(ddof=1) + 1e-4)),
    "normalised twice": z(grouped(z)),
    "first rollout": grouped(lambda r: r - r[0]),
    "sign flipped": -grouped(z),
    "one row too late": np.roll(grouped(z, list(np.roll(ALL, -1))), 1),
    "repeat where repeat_interleave": np.array([z(ALL[p::3]) for p in range(3)]).T.ravel(),
}
DELIBERATE = list(NAMED)[:7]


@pytest.mark.parametrize("name", NAMED)
def test_every_variant_of_advantages_is_told_from_the_others(name):
    match = nearest_advantages(batch_of(NAMED[name], **CONFIGURED))
    assert match.fits
    assert name in match.variant.name
    assert match.variant.is_bug == (name not in DELIBERATE)
    assert match.is_configured == (name in DELIBERATE and "sample std of the group" in name)


@pytest.mark.parametrize("name", DELIBERATE)
def test_without_settings_every_deliberate_variant_is_right(name):
    assert nearest_advantages(batch_of(NAMED[name])).is_configured


def test_settings_that_say_little_rule_out_little():
    batch = batch_of(NAMED["over no std (RLOO)"], std="none")
    assert nearest_advantages(batch).is_configured
    assert not nearest_advantages(edit_batch(batch, baseline="mean")).is_configured


def test_normalising_twice_may_be_gdpo_unless_a_sum_is_stated():
    twice = NAMED["normalised twice"]
    assert nearest_advantages(batch_of(twice)).is_configured
    assert not nearest_advantages(batch_of(twice, combine="sum")).is_configured


def test_no_formula_divides_by_a_negative_number():
    match = nearest_advantages(batch_of(-NAMED["times 0.7 for all rows"]))
    assert not match.fits


def test_nothing_fits_random_numbers():
    match = nearest_advantages(batch_of(np.random.default_rng(0).normal(size=12), **CONFIGURED))
    assert not match.fits
    assert match.configured_distance > 0.1


def test_on_ambiguous_data_what_is_configured_is_preferred():
    one_group = batch_of(z(np.array(REWARDS[:4])), rewards=REWARDS[:4], ids=[0] * 4, **CONFIGURED)
    match = nearest_advantages(one_group)  # the batch is the group
    assert match.is_configured


def test_only_what_the_settings_say_is_computed_where_it_fits(monkeypatch):
    asked = []

    def counted(rewards_PG, **how):
        asked.append((how["baseline"], how["std"], how["scale"]))
        return grpo.group_advantages(rewards_PG, **how)

    monkeypatch.setitem(nearest_advantages.__globals__, "group_advantages", counted)
    assert nearest_advantages(batch_of(grouped(z), **CONFIGURED)).is_configured
    assert asked == [("mean", "sample", "group")]


def test_a_group_of_equal_rewards_does_not_excuse_what_is_wrong_in_the_others():
    """np.std of three times 0.1 is 1e-17: as a spread it would forgive everything."""
    rewards = [0.1, 0.1, 0.1, 0.9, 0.1, 0.1]
    wrong = batch_of(np.array([0.0, 0.0, 0.0, 1.0, 1.0, -2.0]), rewards=rewards, ids=[0] * 3 + [1] * 3, **CONFIGURED)
    assert not nearest_advantages(wrong).fits


def test_unscored_rollouts_counted_as_zero_are_named():
    rewards = [1.0, np.nan, 0.5, 0.0]
    batch = batch_of(z(np.array([1.0, 0.0, 0.5, 0.0])), rewards=rewards, ids=[0] * 4, **CONFIGURED)
    assert "unscored" in nearest_advantages(batch).variant.name


def test_bfloat16_advantages_are_recognised_without_being_told():
    rounded = torch.tensor(NAMED["over the population std of the group"]).bfloat16().double().numpy()
    match = nearest_advantages(batch_of(rounded))
    assert match.fits
    assert "population" in match.variant.name


def test_rewards_far_from_zero_lose_digits_in_float32():
    rewards = 1000 + np.array(REWARDS[:8])
    single = torch.tensor(rewards, dtype=torch.float32).reshape(2, 4)
    values = grpo.group_advantages(single).double().numpy().ravel()
    assert nearest_advantages(batch_of(values, rewards=rewards, ids=IDS[:8], **CONFIGURED)).is_configured


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"ids": [0, 1]}, "group of two"), ({"rewards": [np.inf, 0.0]}, "finite rewards")],
)
def test_unusable_rewards_are_missing_data(changes, missing):
    with pytest.raises(Missing, match=missing):
        nearest_advantages(batch_of([0.0, 0.0], **{"rewards": [1.0, 0.0], "ids": [0, 0], **changes}))


def test_advantages_of_tokens_are_one_a_row_if_they_are_equal_inside_the_mask():
    values = {"mask": [[1, 1, 0], [0, 0, 0]], "advantages": [[2.0, 2.0, 9.0], [1.0, 5.0, 1.0]]}
    np.testing.assert_array_equal(row_advantages(Batch.of(values)), [2.0, np.nan])
    assert row_advantages(Batch.of({**values, "mask": [[1, 1, 1], [0, 0, 0]]})) is None


def test_a_prompt_drawn_twice_makes_two_groups():
    batch = batch_of([0.0] * 4, rewards=[1.0, 0.0, 3.0, 1.0], ids=[5] * 4, group_size=2)
    assert [rows.tolist() for rows in groups_of(batch)] == [[0, 1], [2, 3]]
    assert has_whole_groups(batch)
    assert not has_whole_groups(edit_batch(batch, group_size=3))


def test_equal_rewards_are_no_evidence_of_a_baseline():
    found = centring(batch_of([1.0, -1.0, 1.0, 1.0], rewards=[1.0, 0.0, 0.5, 0.5], ids=[0, 0, 1, 1]))
    assert found.mean_P.tolist() == [0.0]


def test_means_of_groups_by_hand():
    found = centring(batch_of([1.0, -1.0, 2.0, 0.0], rewards=[1.0, 0.0, 1.0, 0.0], ids=[0, 0, 1, 1]))
    assert found.mean_P.tolist() == [0.0, 1.0]
    assert found.is_off_P.tolist() == [False, True]
    assert found.batch_mean == 0.5
    assert not found.batch_is_centred


# ---------------------------------------------------------------- ratio and KL


def moved(**changes):
    return consistent(healthy_batch(update=1), **changes)


RATIOS = {
    "exp(new - old)": lambda log: np.exp(log),
    "exp(mean of": lambda log: np.exp(log.sum(1, keepdims=True) / MASK.sum(1, keepdims=True)) + 0 * log,
    "exp(sum of": lambda log: np.exp(log.sum(1, keepdims=True)) + 0 * log,
    "the inverse": lambda log: np.exp(-log),
    "new - old, without exp": lambda log: log,
    "exp taken twice": lambda log: np.exp(np.exp(log)),
}
MASK = healthy_batch().arrays["mask"]


@pytest.mark.parametrize("name", RATIOS)
def test_every_variant_of_the_ratio_is_told_from_the_others(name):
    batch = healthy_batch(update=1)
    log_BT = np.where(MASK, batch.arrays["new_logprobs"] - batch.arrays["old_logprobs"], 0.0)
    match = nearest_ratio(edit_batch(batch, ratio=RATIOS[name](log_BT)))
    assert match.fits
    assert name in match.variant.name
    assert match.is_configured == (name == "exp(new - old)")


def test_a_ratio_of_one_accuses_nobody():
    match = nearest_ratio(healthy_batch())
    assert match.is_configured


def test_the_ratio_of_gspo_is_one_a_row():
    batch = moved(objective="gspo")
    assert nearest_ratio(batch).is_configured
    assert nearest_ratio(edit_batch(batch, ratio=batch.arrays["ratio"][:, 0])).is_configured
    assert "the inverse" in nearest_ratio(edit_batch(batch, ratio=1 / batch.arrays["ratio"][:, 0])).variant.name


KLS = {
    "k1": lambda d: d,
    "k2": lambda d: d**2 / 2,
    "k3": lambda d: np.exp(-d) - 1 + d,
    "|new - ref|": np.abs,
    "exchanged": lambda d: np.exp(d) - 1 - d,
    "k1 with the sign flipped": lambda d: -d,
    "k3 with the sign flipped": lambda d: 1 - d - np.exp(-d),
    "without its - 1": lambda d: np.exp(-d) + d,
    "one sign wrong": lambda d: np.exp(-d) - 1 - d,
}


@pytest.mark.parametrize("name", KLS)
def test_every_variant_of_the_kl_is_told_from_the_others(name):
    batch = healthy_batch(update=1)
    difference_BT = batch.arrays["new_logprobs"] - batch.arrays["ref_logprobs"]
    match = nearest_kl(edit_batch(batch, kl=np.where(MASK, KLS[name](difference_BT), np.nan)))
    assert match.fits
    assert name in match.variant.name
    assert match.variant.is_bug == (name not in ("k1", "k2", "k3", "|new - ref|"))


def test_policy_and_reference_that_are_equal_accuse_nobody():
    batch = healthy_batch()
    batch = edit_batch(batch, ref_logprobs=batch.arrays["new_logprobs"], kl=np.zeros(MASK.shape))
    assert nearest_kl(batch).is_configured


# ---------------------------------------------------------------- the loss

SETTINGS = LossConfig(kl_coef=0.05, entropy_coef=0.01, correction="token", correction_high=1.01)


def through_torch(batch, settings):
    """(loss, d loss / d new_logprobs) of grpo.policy_loss itself."""
    arrays = {name: torch.tensor(batch.arrays[name]) for name in batch.arrays}
    new_BT = arrays["new_logprobs"].requires_grad_(True)
    total = grpo.policy_loss(
        new_BT=new_BT,
        old_BT=arrays["old_logprobs"],
        ref_BT=arrays["ref_logprobs"],
        sampler_BT=arrays["sampler_logprobs"],
        entropy_BT=arrays["entropy"],
        advantages_BT=torch.tensor(batch.token_advantages.copy()),
        mask_BT=arrays["mask"],
        totals=totals(batch),
        settings=settings,
    ).total
    total.backward()
    return float(total.detach()), np.where(MASK, new_BT.grad.numpy(), 0.0)


@pytest.mark.parametrize("kl_gradient", ["naive", "unbiased"])
@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("objective", grpo.OBJECTIVES)
def test_loss_and_gradient_are_those_of_torch(objective, kl_estimator, kl_gradient):
    how = {"objective": objective, "kl_estimator": kl_estimator, "kl_gradient": kl_gradient, "cispo_max": 1.05}
    settings = replace(SETTINGS, dual_clip=1.1, clip_low=0.05, clip_high=0.1, **how)
    stated = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    batch = edit_batch(healthy_batch(update=1), **stated, sequences=20, loss_tokens=140, max_tokens=15)
    expected, gradient_BT = through_torch(batch, settings)
    assert loss(batch) == pytest.approx(expected, rel=1e-10)
    found_BT = gradients(batch, weights(batch, aggregation_of(batch)))
    np.testing.assert_allclose(found_BT, gradient_BT, atol=1e-9)


def test_weights_by_hand():
    batch = Batch.of({"mask": [[1, 1, 0, 0], [1, 0, 0, 0]], "max_tokens": 10})
    expected = {"sequence_mean": 0.25, "token_mean": 1 / 3, "constant": 0.05, "sum": 1.0, "row_sums": 0.5}
    for aggregation, weight in {**expected, "rollout_token_mean": 1 / 3, "padded_mean": 1 / 8}.items():
        assert weights(batch, aggregation)[0, 0] == pytest.approx(weight), aggregation
    part = edit_batch(batch, sequences=4, loss_tokens=6)
    assert weights(part, "sequence_mean")[0, 0] == pytest.approx(0.125)
    assert weights(part, "token_mean")[0, 0] == pytest.approx(1 / 6)
    assert is_part(part)
    assert not is_part(batch)


def test_wrong_clips_by_hand():
    values = {"mask": [[1, 1, 1, 1]], "old_logprobs": [[0.0] * 4], "new_logprobs": np.log([[1.5, 1.5, 0.5, 1.0]])}
    batch = Batch.of({**values, "tokens": [[1] * 4], "advantages": [[2.0, -2.0, 2.0, 1.0]], "objective": "grpo"})
    found = surrogates(batch, LossConfig(objective="grpo"))
    np.testing.assert_allclose(found["min"], [[-2.4, 3.0, -1.0, -1.0]])
    np.testing.assert_allclose(found["max"], [[-3.0, 2.4, -1.6, -1.0]])
    np.testing.assert_allclose(found["unclipped"], [[-3.0, 3.0, -1.0, -1.0]])
    np.testing.assert_allclose(found["clamped"], [[-2.4, 2.4, -1.6, -1.0]])
    assert terms(batch).clipped_BT.tolist() == [[True, False, False, False]]


def wrong_losses(batch):
    found, weights_BT = terms(batch), weights(batch, "token_mean")
    policy, kl = (float((weights_BT * one_BT).sum()) for one_BT in (found.policy_BT, found.kl_coef * found.kl_BT))
    tokens = MASK.sum()
    return {
        "the configured one with the sign flipped": -policy - kl,
        "sign of the policy part flipped": -policy + kl,
        "padding included": (policy + kl) * tokens / MASK.size,
        "with the KL subtracted": policy - kl,
        "without the KL": policy,
        "KL added twice": policy + 2 * kl,
        "max(r A, clip(r) A)": float((weights_BT * surrogates(batch, found.settings)["max"]).sum()) + kl,
        "divided by its 2 micro-batches again": (policy + kl) / 2,
        "a plain sum over tokens": (policy + kl) * tokens,
        "a mean over rows of sums": (policy + kl) * tokens / 16,
    }


@pytest.mark.parametrize("name", wrong_losses(moved(kl_coef=1.0)))
def test_every_wrong_loss_is_named(name):
    batch = moved(kl_coef=1.0, max_tokens=15, microbatches=2, clip_low=0.06, clip_high=0.06)
    match = nearest_loss(edit_batch(batch, loss=wrong_losses(batch)[name]))
    assert match.fits
    assert name in match.variant.name
    assert not match.is_configured
    assert nearest_loss(batch).is_configured


def test_a_loss_of_zero_by_symmetry_accuses_nobody():
    batch = consistent(healthy_batch(objective="grpo", kl_coef=0.0, kl=None))  # on-policy: the mean of A over rows
    assert abs(batch.number("loss")) < 1e-12
    assert nearest_loss(batch).is_configured


# ---------------------------------------------------------------- matching


def test_a_bug_is_taken_only_if_nothing_else_fits():
    values = np.array([1.0, 2.0])
    bug, wanted = Variant("bug", values, True), Variant("meant", values * 1.00001, options={"std": ("none",)})
    assert nearest(values, [bug, wanted], {}, tolerance=1e-4).variant is wanted
    assert nearest(values, [bug, wanted], {}, tolerance=1e-6).variant is bug


def test_a_difference_below_the_floor_is_none():
    assert distance(np.array([1.0]), np.array([1.5]), floor=0.5) == 0.0
    assert distance(np.array([1.0]), np.array([2.0]), floor=0.5) == 0.25


def test_a_distance_from_what_is_no_number_is_infinite():
    assert distance(np.array([1.0, np.nan]), np.array([1.0, 1.0])) == np.inf
    assert distance(np.array([0.0]), np.array([0.0])) == 0.0


def test_tolerances_follow_the_dtype():
    fine = np.array([0.1234567])
    assert tolerance(Batch.of({}), fine) == 1e-4
    assert tolerance(Batch.of({"dtype": "bfloat16"}), fine) == tolerance(Batch.of({}), np.array([0.5, 0.75])) == 1e-2

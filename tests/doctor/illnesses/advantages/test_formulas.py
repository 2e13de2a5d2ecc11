"""Advantages and formulas: limits from both sides, variants that must stay silent, empty and broken input."""

import numpy as np
import pytest

from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.illnesses.advantages import degenerate_std, formula, group_scope, not_centred, per_sequence_whiten
from assay.doctor.illnesses.kl import kl_estimator
from assay.doctor.illnesses.loss import loss_formula
from assay.doctor.illnesses.ratio import clip_inverted, inverted
from assay.doctor.recompute.advantages import advantages
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.loss import weights
from assay.doctor.recompute.terms import terms
from assay.record.batch import Batch
from assay.verdict import Confidence, Missing, Severity, State

ON_ADVANTAGES = (group_scope, not_centred, degenerate_std, formula, per_sequence_whiten)
EVERY = (*ON_ADVANTAGES, inverted, clip_inverted, kl_estimator, loss_formula)
REWARDS = np.array([1.0, 0.0, 0.0, 0.0, 0.3, 0.9, 0.1, 0.2, 1.0, 1.0, 0.0, 0.5])
IDS = np.repeat([0, 1, 2], 4)
STATED = {"baseline": "mean", "std": "sample", "scale": "group", "combine": "sum", "advantage_epsilon": 1e-4}


def batch_of(values, rewards=REWARDS, ids=IDS, **settings):
    return Batch.of({"rewards": rewards, "group_ids": ids, "advantages": values, **settings})


def grouped(function, rewards=REWARDS):
    return np.concatenate([function(rewards[start : start + 4]) for start in range(0, len(rewards), 4)])


def z(r):
    return (r - r.mean()) / (r.std(ddof=1) + 1e-4)


def word(check, batch):
    """The state that the check ends in; missing data is one of them."""
    try:
        return check(batch).state
    except Missing:
        return State.NOT_ENOUGH_DATA


def findings(batch, illnesses=EVERY):
    return [one.__name__.rpartition(".")[2] for one in illnesses if word(one.check_batch, batch) is State.FINDING]


# ---------------------------------------------------------------- silent on what is meant


@pytest.mark.parametrize("objective", ["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo"])
@pytest.mark.parametrize("update", [0, 1])
def test_every_objective_is_healthy_when_it_is_what_it_says(objective, update):
    batch = consistent(healthy_batch(update=update), objective=objective, kl_gradient="unbiased")
    assert not findings(batch)
    assert word(loss_formula.check_batch, batch) is State.HEALTHY
    assert word(inverted.check_batch, batch) is State.HEALTHY


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize(
    "how",
    [
        {"std": "none"},
        {"std": "none", "baseline": "leave_one_out"},
        {"std": "population"},
        {"scale": "batch"},
        {"advantage_epsilon": 1e-8},
    ],
)
def test_every_way_to_credit_is_healthy_when_stated_or_when_nothing_is(how, stated):
    settings = {**STATED, **how}
    values = advantages(batch_of(REWARDS, **settings))
    batch = batch_of(values, **(settings if stated else {}))
    assert not findings(batch, ON_ADVANTAGES)
    assert word(formula.check_batch, batch) is State.HEALTHY


@pytest.mark.parametrize("how", [{"kl_coef": 0.0}, {"kl_estimator": "k1"}, {"kl_estimator": "k2"}, {"dual_clip": 3.0}])
def test_no_kl_other_estimators_and_bounds_are_healthy(how):
    assert not findings(consistent(healthy_batch(update=1, kl=None, kl_loss=None, kl_mean=None), **how))


def test_unscored_masked_and_equal_rows_are_healthy():
    rewards = REWARDS.copy()
    rewards[[1, 6]] = np.nan
    rewards[8:] = 1.0  # solved
    settings = {**STATED, "group_size": 4}
    values = advantages(batch_of(rewards, rewards=rewards, **settings))
    assert values[1] == values[6] == 0.0
    assert not findings(batch_of(values, rewards=rewards, **settings), ON_ADVANTAGES)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_solved_and_a_hopeless_run_are_healthy(reward):
    batch = batch_of(np.zeros(12), rewards=np.full(12, reward), **STATED)
    assert not findings(batch, ON_ADVANTAGES)


@pytest.mark.parametrize(
    "changes",
    [
        {"process_rewards": True},
        {"combine": "gdpo"},
        {"advantages": np.tile(np.arange(12.0), (12, 1)) ** 2, "mask": np.ones((12, 12))},
        {"values": np.zeros((12, 12))},
    ],
)
def test_other_kinds_of_advantages_are_not_judged_as_those_of_groups(changes):
    batch = edit_batch(batch_of(REWARDS**2 + 0.3, **STATED), **changes)
    assert not findings(batch, ON_ADVANTAGES)
    assert word(formula.check_batch, batch) is State.NOT_APPLICABLE


def test_a_kl_in_the_reward_that_the_batch_does_not_hold_is_not_accused():
    values = grouped(z, REWARDS - np.linspace(0.0, 0.3, 12) ** 2)
    batch = batch_of(values, **STATED, kl_coef=0.1)
    assert word(formula.check_batch, edit_batch(batch, kl_placement="reward")) is State.NOT_APPLICABLE
    assert word(formula.check_batch, edit_batch(batch, kl_placement="loss")) is State.FINDING


def test_parts_of_groups_are_not_accused():
    whole = batch_of(grouped(z), **STATED)
    kept = [0, 1, 2, 4, 5, 6, 8, 9, 10]
    part = batch_of(whole.arrays["advantages"][kept], REWARDS[kept], IDS[kept], **STATED, group_size=4)
    assert not findings(part, ON_ADVANTAGES)
    centred_over_the_part = REWARDS[kept] - REWARDS[kept].mean()
    assert word(group_scope.check_batch, edit_batch(part, advantages=centred_over_the_part)) is State.NOT_APPLICABLE


# ---------------------------------------------------------------- advantages


def test_the_scope_of_a_baseline_is_proven_only_if_a_baseline_is_stated():
    values = REWARDS - REWARDS.mean()
    stated, foreign = (group_scope.check_batch(batch_of(values, **some)) for some in (STATED, {}))
    assert stated.confidence is Confidence.PROVEN
    assert foreign.confidence is Confidence.POSSIBLE


def test_the_three_illnesses_of_a_baseline_do_not_overlap():
    assert findings(batch_of(z(REWARDS), **STATED), (group_scope, not_centred)) == ["group_scope"]
    assert findings(batch_of(REWARDS, **STATED), (group_scope, not_centred)) == ["not_centred"]
    precedence = grouped(lambda r: r - r.mean() / r.std(ddof=1))
    assert findings(batch_of(precedence, **STATED), (group_scope, not_centred, formula)) == ["formula"]


def test_without_rewards_one_sign_in_every_group_is_likely_at_most():
    batch = edit_batch(batch_of(REWARDS, **STATED), rewards=None)
    assert not_centred.check_batch(batch).confidence is Confidence.LIKELY
    assert not_centred.check_batch(edit_batch(batch, baseline=None)).confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(("largest", "state"), [(1.5, State.HEALTHY), (1.53, State.FINDING)])
def test_an_advantage_is_bounded_by_the_size_of_its_group(largest, state):
    values = np.array([largest, -largest / 3, -largest / 3, -largest / 3])  # G = 4: 3 / sqrt(4) = 1.5
    batch = edit_batch(batch_of(values, REWARDS[:4], IDS[:4], **STATED), rewards=None)
    assert word(degenerate_std.check_batch, batch) is state
    for free in ({"std": "none"}, {"std": None}, {"scale": "batch"}):
        assert word(degenerate_std.check_batch, edit_batch(batch, **free)) is State.HEALTHY


@pytest.mark.parametrize(("size", "state"), [(0.09, State.HEALTHY), (0.11, State.FINDING)])
def test_equal_rewards_leave_no_visible_advantage(size, state):
    values = np.concatenate([z(REWARDS[:4]), [size, -size, size, -size]])
    rewards = np.concatenate([REWARDS[:4], [0.1, 0.1, 0.1, 0.1 + 1e-8]])
    assert word(degenerate_std.check_batch, batch_of(values, rewards, IDS[:8], **STATED)) is state


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_advantage_that_is_no_number_is_fatal_if_it_is_in_the_loss(bad):
    values = grouped(z)
    values[3] = bad
    mask = np.ones((12, 2))
    found = degenerate_std.check_batch(batch_of(values, mask=mask, **STATED))
    assert (found.state, found.severity, found.facts[0].row) == (State.FINDING, Severity.FATAL, 3)
    mask[3] = 0
    if np.isnan(bad):
        assert word(degenerate_std.check_batch, batch_of(values, mask=mask, **STATED)) is State.HEALTHY
    assert "formula" not in findings(batch_of(values, mask=np.ones((12, 2)), **STATED))


def test_groups_of_one_are_named_where_a_group_baseline_is_stated():
    alone = {"rewards": [1.0, 0.0], "ids": [0, 1]}
    assert degenerate_std.check_batch(batch_of([0.0, 0.0], **alone, **STATED, group_size=1)).severity is Severity.FATAL
    assert word(degenerate_std.check_batch, batch_of([0.7, -0.7], **alone)) is State.NOT_APPLICABLE
    assert word(degenerate_std.check_batch, batch_of([0.7, 0.1], **alone, group_size=8)) is State.NOT_APPLICABLE


def test_a_deliberate_variant_that_is_not_configured_is_possible():
    found = formula.check_batch(batch_of(grouped(lambda r: r - r.mean()), **STATED))
    assert found.confidence is Confidence.POSSIBLE
    assert "Dr. GRPO" in found.message
    assert "config says reward - group mean, over the sample std" in found.message


def test_an_unknown_formula_is_likely_if_all_is_stated_and_unjudged_if_not():
    values = grouped(z) + np.random.default_rng(0).normal(0, 0.1, 12)
    known = {"group_size": 4, "kl_coef": 0.0, "mask": np.ones((12, 3))}
    assert formula.check_batch(batch_of(values, **known, **STATED)).confidence is Confidence.LIKELY
    assert formula.check_batch(batch_of(values, **STATED)).confidence is Confidence.POSSIBLE  # parts of groups?
    assert word(formula.check_batch, batch_of(values)) is State.NOT_APPLICABLE
    assert word(formula.check_batch, batch_of(values, std="sample")) is State.NOT_APPLICABLE


def test_a_flipped_sign_is_fatal():
    assert formula.check_batch(batch_of(-grouped(z), **STATED)).severity is Severity.FATAL


def test_one_white_row_is_not_enough_to_accuse():
    white = np.array([1.0, 0.0, -1.0])
    mask = np.ones((3, 3))
    rows = np.stack([white, white + 0.1, white * 1.5])
    check = per_sequence_whiten.check_batch
    assert word(check, Batch.of({"advantages": rows, "mask": mask})) is State.HEALTHY
    rows[1:] = white, white * 1.01
    assert word(check, Batch.of({"advantages": rows, "mask": mask})) is State.FINDING
    assert word(check, Batch.of({"advantages": rows[:1], "mask": mask[:1]})) is State.NOT_ENOUGH_DATA
    assert word(check, Batch.of({"advantages": np.zeros((3, 3)), "mask": mask})) is State.HEALTHY


# ---------------------------------------------------------------- ratio, clip, KL, loss


def test_a_kl_that_outweighs_the_advantages_is_not_a_flipped_sign():
    batch = consistent(healthy_batch(update=1), kl_coef=50.0)
    assert inverted.check_batch(batch).facts[0].what.startswith("distance of the ratio")
    assert word(inverted.check_batch, edit_batch(batch, ratio=None)) is State.HEALTHY


def test_the_ratio_is_judged_without_gradients_and_the_other_way_round():
    batch = healthy_batch(update=1)
    without = edit_batch(batch, gradients=None)
    assert word(inverted.check_batch, edit_batch(without, ratio=1 / batch.arrays["ratio"])) is State.FINDING
    flipped = edit_batch(batch, ratio=None, gradients=-batch.arrays["gradients"])
    assert word(inverted.check_batch, flipped) is State.FINDING
    assert word(inverted.check_batch, edit_batch(without, ratio=None)) is State.NOT_ENOUGH_DATA


def test_on_policy_there_is_no_clip_to_judge():
    assert word(clip_inverted.check_batch, healthy_batch()) is State.NOT_ENOUGH_DATA


def clipped_batch(**settings):
    (batch,) = clip_inverted.ILLNESS.well().batches
    return consistent(batch, token_loss=None, **settings) if settings else edit_batch(batch, token_loss=None)


@pytest.mark.parametrize("objective", ["dapo", "grpo", "gspo", "dr_grpo"])
def test_the_clip_is_judged_by_gradients_alone_and_whatever_their_scale(objective):
    right = clipped_batch(objective=objective, clip_low=0.02, clip_high=0.02)
    right = edit_batch(right, token_loss=None, gradients=right.arrays["gradients"] * 7.0)
    assert word(clip_inverted.check_batch, right) is State.HEALTHY
    free = consistent(right, clip_low=1e9, clip_high=1e9).arrays["gradients"]
    never = edit_batch(right, gradients=free)
    assert "never clipped" in clip_inverted.check_batch(never).message


def test_max_in_the_place_of_min_is_told_by_gradients():
    (batch,) = clip_inverted.ILLNESS.sick().batches
    assert "max(r A, clip(r) A)" in clip_inverted.check_batch(edit_batch(batch, token_loss=None)).message
    assert "max(r A, clip(r) A)" in clip_inverted.check_batch(edit_batch(batch, gradients=None)).message


def test_the_kl_part_of_the_loss_tells_the_estimator():
    batch = edit_batch(consistent(healthy_batch(update=1)), kl=None)
    assert word(kl_estimator.check_batch, batch) is State.HEALTHY
    difference_BT = np.where(batch.arrays["mask"], batch.arrays["new_logprobs"] - batch.arrays["ref_logprobs"], 0.0)
    mean = float((np.expm1(difference_BT) - difference_BT).sum() / batch.arrays["mask"].sum())
    found = kl_estimator.check_batch(edit_batch(batch, kl_loss=0.05 * mean))
    assert "exchanged" in found.message
    assert found.confidence is Confidence.PROVEN
    assert word(kl_estimator.check_batch, edit_batch(batch, kl_loss=-0.01)) is State.NOT_APPLICABLE


def test_another_estimator_is_possible_where_one_is_stated():
    batch = edit_batch(consistent(healthy_batch(update=1), kl_estimator="k1"), kl_estimator="k3")
    assert kl_estimator.check_batch(batch).confidence is Confidence.POSSIBLE
    assert word(kl_estimator.check_batch, edit_batch(batch, kl_estimator=None)) is State.HEALTHY


@pytest.mark.parametrize(("mean", "state"), [(-1e-4, State.FINDING), (-1e-6, State.NOT_ENOUGH_DATA)])
def test_a_mean_of_k3_below_zero_is_impossible(mean, state):
    batch = Batch.of({"kl_coef": 0.1, "kl_estimator": "k3", "kl_mean": mean, "dtype": "float32"})
    assert word(kl_estimator.check_batch, batch) is state
    assert word(kl_estimator.check_batch, edit_batch(batch, kl_estimator="k1")) is State.NOT_APPLICABLE


@pytest.mark.parametrize(("off", "state"), [(5e-5, State.HEALTHY), (3e-4, State.FINDING)])
def test_a_loss_may_be_off_by_rounding_of_its_terms(off, state):
    batch = consistent(healthy_batch(update=1), kl_coef=0.0)
    terms_BT = np.abs(batch.arrays["token_loss"][batch.arrays["mask"]])
    assert word(loss_formula.check_batch, edit_batch(batch, loss=batch.number("loss") + off * terms_BT.mean())) is state


def test_a_part_of_an_update_is_compared_with_its_share_and_else_left_alone():
    part = consistent(healthy_batch(update=1), sequences=64, loss_tokens=512)
    assert word(loss_formula.check_batch, part) is State.HEALTHY
    assert word(loss_formula.check_batch, edit_batch(part, loss=0.123)) is State.NOT_APPLICABLE
    assert word(loss_formula.check_batch, edit_batch(part, loss=0.123, loss_again=0.123)) is State.FINDING
    flipped = -float((weights(part, "token_mean") * terms(part).of_tokens()).sum())
    assert loss_formula.check_batch(edit_batch(part, loss=flipped)).confidence is Confidence.LIKELY
    assert loss_formula.check_batch(edit_batch(part, loss=flipped, loss_again=flipped)).confidence is Confidence.PROVEN


def test_the_loss_of_a_foreign_batch_is_healthy_if_any_objective_fits_and_never_accused():
    batch = edit_batch(consistent(healthy_batch(update=1), objective="gspo"), objective=None)
    assert word(loss_formula.check_batch, batch) is State.HEALTHY
    assert word(loss_formula.check_batch, edit_batch(batch, loss=0.123)) is State.NOT_APPLICABLE


def test_a_mean_over_a_rollout_batch_of_unknown_size_is_not_accused():
    batch = edit_batch(consistent(healthy_batch(update=1)), loss=0.123, minibatches=2)
    assert word(loss_formula.check_batch, batch) is State.NOT_APPLICABLE
    assert word(loss_formula.check_batch, edit_batch(batch, minibatches=1)) is State.FINDING


@pytest.mark.parametrize("illness", EVERY, ids=lambda one: one.__name__.rpartition(".")[2])
@pytest.mark.parametrize("name", ["new_logprobs", "old_logprobs", "ref_logprobs", "rewards", "advantages", "gradients"])
def test_numbers_that_are_none_crash_nothing(illness, name, recwarn):
    batch = healthy_batch(update=1)
    for broken in (np.full(batch.arrays[name].shape, np.nan), np.zeros(batch.arrays[name].shape)):
        word(illness.check_batch, edit_batch(batch, **{name: broken}))
    word(illness.check_batch, edit_batch(batch, mask=np.zeros(batch.arrays["mask"].shape)))
    assert not recwarn.list

"""The illnesses seen in curves: their limits from both sides, and the healthy runs on which they must be silent."""

from dataclasses import replace

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Curves
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves, of_curves
from assay.doctor.facts.trend import is_solved, quarter_medians, reward_range
from assay.doctor.illnesses.loss import zero_loss
from assay.doctor.illnesses.metrics import (
    entropy_collapse,
    gradient,
    kl_runaway,
    length_truncation,
    metric_wrong,
    reward_hacking,
    signal_lost,
)
from assay.doctor.illnesses.optimizer import hyperparameter, no_update
from assay.doctor.illnesses.speed import slow_step
from assay.verdict import Confidence, Missing, Severity, State

ALL = (
    entropy_collapse,
    gradient,
    hyperparameter,
    kl_runaway,
    length_truncation,
    metric_wrong,
    no_update,
    reward_hacking,
    signal_lost,
    slow_step,
    zero_loss,
)


def word(module, curves):
    try:
        return module.check_curves(curves).state
    except Missing:
        return State.NOT_ENOUGH_DATA


def noise(steps, spread, seed):
    return spread * np.random.default_rng(seed).standard_normal(steps)


def noisy(seed, steps):
    rise = np.linspace(0.3, 0.6, steps)
    return healthy_curves(
        steps=steps,
        reward_mean=np.clip(rise + noise(steps, 0.15, seed), 0, 1),
        entropy=np.abs(0.8 + noise(steps, 0.2, seed + 1)),
        gradient_norm=np.exp(noise(steps, 0.8, seed + 2)),
        truncated_share=np.clip(0.2 + noise(steps, 0.1, seed + 3), 0, 1),
        ref_kl=np.abs(np.linspace(0, 0.2, steps) + noise(steps, 0.05, seed + 4)),
        old_kl=0.002 * np.exp(noise(steps, 1.0, seed + 5)),
        clipped_share=np.abs(noise(steps, 0.05, seed + 6)),
        zero_variance_share=np.clip(0.3 + noise(steps, 0.2, seed + 7), 0, 1),
    )


def solved(seed, steps):
    near_end = np.linspace(3.0, -12.0, steps)
    wrong = 1 / (1 + np.exp(-near_end))
    wrong[-steps // 3 :] = 0.0
    return healthy_curves(
        steps=steps,
        reward_mean=1 - wrong,
        reward_min=np.where(wrong > 0, 0.0, 1.0),
        entropy=wrong + 0.01,
        zero_variance_share=1 - wrong,
        gradient_norm=np.where(wrong > 0, 0.5 * wrong, np.where(np.arange(steps) % 5 == 0, 2.0, 0.0)),
        loss=0.0,
        ref_kl=2 * (1 - wrong),
    )


def hopeless(seed, steps):
    flat = {"reward_mean": 0.0, "reward_std": 0.0, "reward_max": 0.0, "zero_variance_share": 1.0}
    return healthy_curves(
        steps=steps,
        **flat,
        loss=0.0,
        gradient_norm=0.0,
        gradient_norm_max=0.0,
        updates_applied=0,
        updates_without_signal=2,
        entropy=1.0,
        tensors_changed_share=None,
        update_norm=None,
    )


@pytest.mark.parametrize("module", ALL, ids=lambda module: module.ILLNESS.code)
@pytest.mark.parametrize("run", [noisy, solved, hopeless])
def test_healthy_runs_are_left_alone_whatever_their_length(module, run):
    for steps in (1, 2, 5, 12, 20, 40, 100):
        for seed in range(6):
            assert word(module, run(seed, steps)) is not State.FINDING, (steps, seed)


@pytest.mark.parametrize("module", ALL, ids=lambda module: module.ILLNESS.code)
def test_rows_without_a_single_number_crash_nothing(module):
    assert word(module, Curves([{"step": 1, "loss": None}, {}])) is State.NOT_ENOUGH_DATA
    gaps = healthy_curves(entropy=np.where(np.arange(60) % 3 == 0, np.nan, 0.5), reward_mean=np.full(60, np.nan))
    assert word(module, gaps) is not State.FINDING


def test_quarters_have_medians_and_nineteen_steps_are_too_few():
    assert quarter_medians(np.array([*range(20), np.nan]), "x") == (2.0, 7.0, 12.0, 17.0)
    with pytest.raises(Missing, match="x of 20 steps"):
        quarter_medians(np.arange(19.0), "x")


def test_solved_is_within_a_tenth_of_the_best_reward_seen_or_configured():
    assert is_solved(healthy_curves(reward_mean=0.91))
    assert not is_solved(healthy_curves(reward_mean=0.89))
    bonus = healthy_curves(reward_mean=1.2, reward_max=2.0)
    assert reward_range(bonus) == (0.0, 2.0)
    assert not is_solved(bonus)


def collapse(last, reward=0.4, rise=0.0):
    entropy_N = np.where(np.arange(60) < 30, 1.0, last)
    return healthy_curves(entropy=entropy_N, reward_mean=reward + rise * (np.arange(60) >= 45))


@pytest.mark.parametrize(
    ("curves", "state"),
    [
        (collapse(0.09), State.FINDING),
        (collapse(0.11), State.HEALTHY),
        (collapse(0.01, reward=0.95), State.HEALTHY),
        (collapse(0.01, rise=0.03), State.HEALTHY),
        (collapse(0.01, rise=0.01), State.FINDING),
        (healthy_curves(entropy=0.05, reward_mean=0.4), State.HEALTHY),  # low from the start: it did not fall
        (healthy_curves(entropy=np.where(np.arange(60) < 30, 0.5, 0.09), reward_mean=0.4), State.HEALTHY),  # 18 % left
        (healthy_curves(entropy=np.where(np.arange(60) < 30, 5.0, 0.3), reward_mean=0.4), State.HEALTHY),  # enough left
        (
            healthy_curves(entropy=np.where(np.arange(60) < 5, 1.0, 0.02), reward_mean=0.4),
            State.FINDING,
        ),  # gone at once
    ],
)
def test_entropy_collapses_below_a_tenth_while_the_reward_stands(curves, state):
    assert word(entropy_collapse, curves) is state


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"ref_kl": np.linspace(0, 1.2, 60)}, State.FINDING),
        ({"ref_kl": np.linspace(0, 1.1, 60)}, State.HEALTHY),
        ({"ref_kl": np.linspace(4, 1.1, 60)}, State.HEALTHY),  # on its way back
        ({"ref_kl": np.linspace(0, 4, 60), "reward_mean": 0.95}, State.HEALTHY),
        ({"old_kl": np.where(np.arange(60) % 30 == 3, 0.6, 0.001)}, State.FINDING),
        ({"old_kl": np.where(np.arange(60) == 3, 9.0, 0.001)}, State.HEALTHY),
        ({"old_kl": np.where(np.arange(60) % 30 == 3, 0.4, 0.001)}, State.HEALTHY),
    ],
)
def test_the_policy_must_not_run_away(columns, state):
    assert word(kl_runaway, healthy_curves(**columns)) is state


@pytest.mark.parametrize(
    ("first", "last", "reward", "state"),
    [
        (0.3, 0.51, 0.4, State.FINDING),
        (0.3, 0.49, 0.4, State.HEALTHY),
        (0.6, 0.74, 0.4, State.HEALTHY),
        (0.6, 0.76, 0.4, State.FINDING),
        (0.1, 0.9, 0.95, State.HEALTHY),
    ],
)
def test_truncation_must_be_common_and_have_grown(first, last, reward, state):
    share_N = np.where(np.arange(60) < 30, first, last)
    assert word(length_truncation, healthy_curves(truncated_share=share_N, reward_mean=reward)) is state


def evaluated(before, after, error=0.01, **columns):
    rows = [
        {"step": step, "pass_at_1": rate, "pass_at_1_std_error": error} for step, rate in ((0, before), (60, after))
    ]
    return replace(healthy_curves(**columns), evaluations=rows)


@pytest.mark.parametrize(
    ("curves", "state"),
    [
        (evaluated(0.4, 0.37), State.FINDING),  # training gains 0.37 of its range
        (evaluated(0.4, 0.44), State.FINDING),
        (evaluated(0.4, 0.45), State.HEALTHY),
        (evaluated(0.4, 0.38, error=0.05), State.HEALTHY),  # too noisy to say
        (evaluated(0.0, 0.0), State.HEALTHY),  # partial credit comes first
        (evaluated(0.97, 0.97), State.HEALTHY),  # cannot rise
        (evaluated(0.4, 0.1, reward_mean=0.5), State.HEALTHY),  # the training reward did not rise
        (replace(healthy_curves(), evaluations=()), State.NOT_ENOUGH_DATA),
    ],
)
def test_held_out_answers_must_follow_the_training_reward(curves, state):
    assert word(reward_hacking, curves) is state


@pytest.mark.parametrize(
    ("names", "state"),
    [(("style", "exact"), State.FINDING), (("style", "reference_kl"), State.NOT_ENOUGH_DATA)],
)
def test_a_component_that_falls_while_another_rises_is_named(names, state):
    up, down = names
    columns = {f"reward_{up}_mean": np.linspace(0.2, 0.8, 60), f"reward_{down}_mean": np.linspace(0.5, 0.3, 60)}
    assert word(reward_hacking, replace(healthy_curves(**columns), evaluations=())) is state


def test_a_component_that_falls_within_its_noise_is_not_named():
    down_N = np.linspace(0.5, 0.4, 60) + noise(60, 0.15, 3)
    columns = {"reward_style_mean": np.linspace(0.2, 0.8, 60), "reward_exact_mean": down_N}
    assert word(reward_hacking, replace(healthy_curves(**columns), evaluations=())) is State.HEALTHY


@pytest.mark.parametrize(
    ("columns", "state", "severity"),
    [
        ({"updates_skipped": np.arange(60) < 7}, State.FINDING, None),  # 7 of 127 updates
        ({"updates_skipped": np.arange(60) < 6}, State.HEALTHY, None),
        ({"gradient_norm": np.where(np.arange(60) < 31, 0.0, 0.5)}, State.FINDING, Severity.FATAL),
        ({"gradient_norm": np.where(np.arange(60) < 30, 0.0, 0.5)}, State.HEALTHY, None),
        ({"gradient_norm": 0.0, "updates_applied": 0}, State.HEALTHY, None),
        ({"gradient_norm": np.where(np.arange(60) % 30 == 9, 26.0, 0.5)}, State.FINDING, None),
        ({"gradient_norm": np.where(np.arange(60) % 30 == 9, 24.0, 0.5)}, State.HEALTHY, None),
        ({"gradient_norm": np.where(np.arange(60) == 9, 900.0, 0.5)}, State.HEALTHY, None),
        ({"gradient_norm": 11.0}, State.FINDING, Severity.WASTEFUL),
        ({"gradient_norm": 9.0}, State.HEALTHY, None),
    ],
)
def test_the_gradient_norm_is_finite_above_zero_steady_and_not_always_clipped(columns, state, severity):
    verdict = gradient.check_curves(healthy_curves(**columns))
    assert (verdict.state, verdict.severity) == (state, severity)


@pytest.mark.parametrize(
    ("settings", "severity"),
    [
        ({"learning_rate": 0.0}, Severity.FATAL),
        ({"kl_coef": 1.5}, Severity.HARMFUL),
        ({"entropy_coef": 0.11}, Severity.HARMFUL),
        ({"clip_low": 1.0}, Severity.HARMFUL),
        ({"clip_high": 0.0}, Severity.HARMFUL),
        ({"group_size": 3}, Severity.WASTEFUL),
        ({"group_size": 2, "temperature": 0.2}, Severity.HARMFUL),
        ({"temperature": 1.6}, Severity.HARMFUL),
        ({"advantage_epsilon": 0.2}, Severity.HARMFUL),
        ({"clip_norm": 1e-4}, Severity.HARMFUL),
        ({"weight_decay": 0.5}, Severity.HARMFUL),
        ({"updates_per_rollout": 17}, Severity.HARMFUL),
    ],
)
def test_settings_out_of_range_are_possible_findings(settings, severity):
    (word,) = diagnose(of_curves(healthy_curves(settings=settings)), [hyperparameter.ILLNESS]).words
    verdict = word.verdict
    sure = Confidence.LIKELY if settings == {"learning_rate": 0.0} else Confidence.POSSIBLE
    assert (verdict.state, verdict.severity, verdict.confidence) == (State.FINDING, severity, sure)
    assert len(verdict.facts) == len(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_low": 0.0, "clip_high": 0.0, "updates_per_rollout": 1},
        {"clip_low": 1.0, "objective": "cispo"},
        {"advantage_epsilon": 0.5, "std": "none"},
        {"clip_norm": 0.0},
        {"kl_coef": 0.0, "updates_per_rollout": 16, "group_size": 4, "temperature": 0.3},
        {"learning_rate": "not a number"},
    ],
)
def test_settings_that_are_meant_are_left_alone(settings):
    assert word(hyperparameter, healthy_curves(settings=settings)) is State.HEALTHY


def test_a_limit_that_cuts_off_all_answers_from_the_start_is_a_setting():
    assert "max_tokens = 12" in hyperparameter.check_curves(healthy_curves(truncated_share=0.95)).message
    assert word(hyperparameter, healthy_curves(truncated_share=0.85)) is State.HEALTHY
    assert word(hyperparameter, healthy_curves(truncated_share=0.95, reward_mean=0.95)) is State.HEALTHY


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"reward_mean": 1.5}, "reward_mean is outside"),
        ({"ratio_mean": 0.5}, "ratio_mean is outside"),
        ({"tokens_in_loss": 5121}, "tokens_in_loss is larger"),
        ({"length_mean": 65.0}, "length_mean is larger"),
        ({"truncated_share": 1.2}, "truncated_share is not between"),
        ({"ref_kl": -0.3}, "ref_kl is negative in"),
        ({"ref_kl": -1.01}, "ref_kl is negative, which looks like -ratio,"),
        ({"entropy": -0.1}, "entropy is negative"),
    ],
)
def test_metrics_that_contradict_each_other_are_named(columns, what):
    assert what in metric_wrong.check_curves(healthy_curves(**columns)).message


def test_a_k1_estimate_may_be_negative():
    assert word(metric_wrong, healthy_curves(ref_kl=-0.3, settings={"kl_estimator": "k1"})) is State.HEALTHY


def logged(**numbers):
    batch = healthy_batch(update=1)
    return metric_wrong.check_batch(edit_batch(batch, **numbers))


def test_a_logged_number_is_recognised_by_the_mistake_that_makes_it():
    batch = healthy_batch(update=1)
    mask_BT, kl_BT = batch.arrays["mask"], batch.arrays["kl"]
    ratio_BT = np.exp(batch.arrays["new_logprobs"] - batch.arrays["ref_logprobs"])
    clipped_BT = mask_BT & (np.arange(12) < 2)
    for verdict, how in (
        (logged(kl_mean=float(kl_BT.mean())), "padding included"),
        (logged(kl_mean=float(kl_BT.sum())), "the sum"),
        (logged(kl_mean=-float(ratio_BT[mask_BT].mean())), "-ratio"),
        (logged(clipped=clipped_BT, clipped_share=32.0), "count"),
        (logged(reward_mean=5.0), "the sum"),
    ):
        assert how in verdict.message
        assert verdict.confidence is Confidence.PROVEN


def test_a_logged_number_that_fits_nothing_is_only_possible():
    assert logged(kl_mean=0.77).confidence is Confidence.POSSIBLE
    assert logged(reward_mean=0.9).confidence is Confidence.POSSIBLE


def test_other_estimators_and_row_means_are_what_a_trainer_may_log():
    batch = healthy_batch(update=1)
    mask_BT = batch.arrays["mask"]
    difference_BT = batch.arrays["new_logprobs"] - batch.arrays["ref_logprobs"]
    for value in (difference_BT[mask_BT].mean(), (difference_BT[mask_BT] ** 2).mean() / 2):
        assert logged(kl_mean=float(value)).state is State.HEALTHY


def test_unscored_rows_counted_as_zero_are_named():
    rewards_B = healthy_batch().arrays["rewards"].copy()
    rewards_B[:2] = np.nan
    right, wrong = float(np.nanmean(rewards_B)), float(np.nansum(rewards_B) / 16)
    assert logged(rewards=rewards_B, reward_mean=right).state is State.HEALTHY
    assert "unscored rows as 0" in logged(rewards=rewards_B, reward_mean=wrong).message


def test_numbers_of_a_larger_update_are_not_compared():
    with pytest.raises(Missing, match="whole update"):
        logged(kl_mean=0.77, sequences=64)

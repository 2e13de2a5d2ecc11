"""zero_loss names one cause of a loss of 0; signal_lost accounts for every generated token."""

import numpy as np
import pytest

from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.illnesses.loss import zero_loss
from assay.doctor.illnesses.metrics import signal_lost
from assay.verdict import Confidence, Missing, Severity, State

ROWS = 16


def zero(**changes):
    return zero_loss.check_batch(healthy_batch(loss=0.0, **changes))


def test_a_loss_that_is_not_near_zero_is_left_alone():
    assert zero_loss.check_batch(healthy_batch(loss=0.01)).message == "the loss is not near 0"


def test_near_is_a_thousandth_of_the_advantages():
    batch = healthy_batch()
    size = float(np.abs(batch.token_advantages[batch.arrays["mask"]]).mean())
    near, far = (zero_loss.check_batch(edit_batch(batch, loss=factor * 1e-3 * size)) for factor in (0.9, 1.1))
    assert "cancel" in near.message
    assert near.state is State.HEALTHY
    assert far.message == "the loss is not near 0"


def test_on_policy_the_harmless_zero_shows_the_gradient_that_proves_it():
    verdict = zero()
    assert verdict.state is State.HEALTHY
    assert {"gradient norm", "sum of |d loss / d new| over tokens"} <= {fact.what for fact in verdict.facts}


def test_without_any_gradient_only_an_on_policy_zero_can_be_called_harmless():
    bare = {"gradients": None, "gradient_norm": None}
    assert zero(**bare).state is State.HEALTHY
    with pytest.raises(Missing, match="gradient_norm"):
        zero(update=1, **bare)


def test_a_nan_that_became_zero_is_found_with_its_place():
    advantages_B = healthy_batch().arrays["advantages"].copy()
    advantages_B[5] = np.nan
    verdict = zero(advantages=advantages_B)
    assert (verdict.state, verdict.severity) == (State.FINDING, Severity.FATAL)
    assert (verdict.facts[1].row, verdict.facts[1].token) == (5, 0)


def test_an_empty_mask_is_the_cause():
    assert "mask" in zero(mask=np.zeros((ROWS, 12), dtype=bool)).message


@pytest.mark.parametrize(
    ("rewards", "state", "word"),
    [
        (np.ones(ROWS), State.NOT_APPLICABLE, "solved"),
        (np.zeros(ROWS), State.NOT_APPLICABLE, "too hard"),
        (np.full(ROWS, 0.37), State.FINDING, "constant"),
        (np.repeat([0.0, 1.0, 0.0, 1.0], 4), State.FINDING, "never within one"),
        (np.tile([0.0, 1.0, 0.0, 1.0], 4), State.FINDING, "although rewards differ"),
        (np.where(np.arange(ROWS) == 3, np.nan, 1.0), State.NOT_APPLICABLE, "solved"),
    ],
)
def test_advantages_of_zero_are_explained_by_the_rewards(rewards, state, word):
    verdict = zero(advantages=np.zeros(ROWS), rewards=rewards)
    assert verdict.state is state
    assert word in verdict.message


def test_everything_clipped_is_the_cause_but_not_if_one_row_is_free():
    batch = healthy_batch(update=1, loss=0.0)
    assert "clipped" in zero_loss.check_batch(edit_batch(batch, clipped=batch.arrays["mask"])).message
    free_BT = batch.arrays["mask"].copy()
    free_BT[0] = False
    assert zero_loss.check_batch(edit_batch(batch, clipped=free_BT)).state is State.HEALTHY


def test_vanished_importance_weights_are_the_cause():
    batch = healthy_batch(loss=0.0, correction="sequence", correction_mode="truncate", correction_high=2.0)
    off = edit_batch(batch, old_logprobs=batch.arrays["sampler_logprobs"] - 1.5)
    verdict = zero_loss.check_batch(off)
    assert verdict.severity is Severity.FATAL
    assert "importance weights" in verdict.message
    assert zero_loss.check_batch(batch).state is State.HEALTHY


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tensors_changed": 0, "numbers_changed_share": 0.0}, "frozen"),
        ({"numbers_changed_share": 0.0005}, "precision"),
    ],
)
def test_weights_that_stay_are_a_likely_cause(change, word):
    verdict = zero(**change)
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)
    assert word in verdict.message
    assert zero(**change, learning_rate=0.0).state is State.HEALTHY


def test_in_curves_a_loss_of_zero_with_a_gradient_is_harmless():
    assert zero_loss.check_curves(healthy_curves(loss=0.0)).state is State.HEALTHY


@pytest.mark.parametrize(
    ("reward", "flat", "state"),
    [
        (1.0, 1.0, State.HEALTHY),
        (0.0, 1.0, State.NOT_APPLICABLE),
        (0.5, 1.0, State.FINDING),
        (0.5, 0.2, State.FINDING),
    ],
)
def test_in_curves_a_gradient_of_zero_is_explained_by_the_rewards(reward, flat, state):
    curves = healthy_curves(loss=0.0, gradient_norm=0.0, reward_mean=reward, zero_variance_share=flat)
    assert zero_loss.check_curves(curves).state is state


def facts_of(verdict):
    return {fact.what: fact.value for fact in verdict.facts}


def test_every_generated_token_is_accounted_for_once():
    """Rows of 4 tokens. 0 is cut off and masked; 1 is in a group of equal rewards; 2 has a token clipped and one out of
    the mask; 3 and 5 are whole; 4 has an advantage of 0."""
    mask_BT = np.ones((6, 4), dtype=bool)
    mask_BT[0], mask_BT[2, 3] = False, False
    clipped_BT = np.zeros((6, 4), dtype=bool)
    clipped_BT[2, 0] = True
    batch = healthy_batch().of(
        {
            "tokens": np.ones((6, 4), dtype=int),
            "mask": mask_BT,
            "clipped": clipped_BT,
            "lengths": np.full(6, 4),
            "finished": [False, True, True, True, True, True],
            "rewards": [1.0, 1.0, 0.0, 1.0, 0.5, 0.5],
            "group_ids": [0, 0, 1, 1, 1, 1],
            "advantages": [0.0, 0.0, -1.0, 1.0, 0.0, 0.1],
        }
    )
    verdict = signal_lost.check_batch(batch)
    assert verdict.state is State.HEALTHY
    assert facts_of(verdict) == {
        "tokens generated": 24,
        "lost: cut off and masked": "4 (17%)",
        "lost: in groups whose rewards are all equal": "4 (17%)",
        "lost: with an advantage of 0": "4 (17%)",
        "lost: masked": "1 (4%)",
        "lost: clipped": "1 (4%)",
        "left: tokens that carry the reward's signal": "10 (42%)",
    }


def test_weights_near_zero_lose_tokens_too():
    batch = healthy_batch(update=1, correction="token", correction_mode="truncate", correction_high=2.0)
    off = edit_batch(batch, old_logprobs=batch.arrays["sampler_logprobs"] - 10.0)
    assert "lost: with an importance weight near 0" in facts_of(signal_lost.check_batch(off))


def one_group_with_signal(groups, **changes):
    rewards_B = np.zeros(4 * groups)
    rewards_B[0] = 1.0
    advantages_B = np.zeros(4 * groups)
    advantages_B[:4] = [1.5, -0.5, -0.5, -0.5]
    values = {
        "tokens": np.ones((4 * groups, 3), dtype=int),
        "mask": np.ones((4 * groups, 3), dtype=bool),
        "rewards": rewards_B,
        "advantages": advantages_B,
        "group_ids": np.repeat(np.arange(groups), 4),
        "max_reward": 1.0,
        **changes,
    }
    return signal_lost.check_batch(healthy_batch().of(values))


def test_less_than_a_tenth_is_a_finding_and_possible_where_equal_rewards_are_the_cause():
    assert one_group_with_signal(10).state is State.HEALTHY
    sparse = one_group_with_signal(11)
    assert (sparse.state, sparse.confidence) == (State.FINDING, Confidence.POSSIBLE)


def test_a_solved_and_a_hopeless_batch_are_not_accused():
    solved = np.ones(44)
    solved[0] = 0.0
    assert one_group_with_signal(11, rewards=solved).state is State.HEALTHY
    flat = {"rewards": np.zeros(44), "advantages": np.zeros(44)}
    assert one_group_with_signal(11, **flat).state is State.NOT_APPLICABLE


def test_in_curves_skipped_groups_are_not_counted_twice():
    columns = {"zero_variance_share": 0.9, "tokens_in_loss": 600}
    assert signal_lost.check_curves(healthy_curves(**columns)).state is State.FINDING
    skipping = healthy_curves(settings={"zero_variance": "skip"}, **columns)
    assert signal_lost.check_curves(skipping).state is State.HEALTHY


def test_in_curves_a_solved_and_a_hopeless_run_are_not_accused():
    assert signal_lost.check_curves(healthy_curves(zero_variance_share=0.95, reward_mean=0.99)).state is State.HEALTHY
    hopeless = healthy_curves(zero_variance_share=1.0, reward_mean=0.0)
    assert signal_lost.check_curves(hopeless).state is State.NOT_APPLICABLE

"""Rewards, groups and their order: limits from both sides, and the runs that must stay silent."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.illnesses.advantages import (
    group_order,
    returns_from_whitened,
    reward_misaligned,
    reward_position,
    zero_signal,
)
from assay.doctor.illnesses.rewards import reward_constant
from assay.verdict import Confidence, Missing, Severity, State

MINE = [
    one.ILLNESS
    for one in (
        group_order,
        returns_from_whitened,
        reward_constant,
        reward_misaligned,
        reward_position,
        zero_signal,
    )
]
FINDING, HEALTHY, NOT_APPLICABLE, NO_DATA = State.FINDING, State.HEALTHY, State.NOT_APPLICABLE, State.NOT_ENOUGH_DATA
TOKENS = np.arange(16)[:, None]  # sixteen different completions of one token


def of_rewards(rewards, **values):
    """Groups of four."""
    rewards = np.asarray(rewards, dtype=float)
    rows = len(rewards)
    return Batch.of({"rewards": rewards, "group_ids": np.arange(rows) // 4, "tokens": TOKENS[:rows], **values})


# ---------------------------------------------------------------- reward_constant


@pytest.mark.parametrize(
    ("reward", "settings", "state"),
    [
        (0.5, {}, FINDING),
        (0.5, {"max_reward": 1.0, "min_reward": 0.0}, FINDING),
        (1.0, {"max_reward": 1.0}, NOT_APPLICABLE),  # solved, or a reward that every answer gets
        (1.2, {"max_reward": 1.0}, NOT_APPLICABLE),
        (0.0, {"max_reward": 1.0}, NOT_APPLICABLE),  # hopeless, or broken: zero_signal says both
        (-1.0, {}, NOT_APPLICABLE),
        (1.0, {}, NOT_APPLICABLE),  # the best of a scale that nobody states?
        (-0.3, {"min_reward": -0.3}, NOT_APPLICABLE),
        (0.0, {"min_reward": -1.0}, FINDING),
    ],
)
def test_a_constant_reward_inside_of_its_scale_is_a_finding(reward, settings, state):
    verdict = reward_constant.check_batch(of_rewards([reward] * 16, **settings))
    assert verdict.state is state
    if verdict.state is FINDING:  # of a scale that is not stated it may be the best reward: a solved batch
        stated = {"max_reward", "min_reward"} <= settings.keys()
        assert verdict.confidence is (Confidence.LIKELY if stated else Confidence.POSSIBLE)


def test_equal_answers_may_earn_equal_rewards():
    few = np.repeat([1, 2], 8)[:, None]
    assert reward_constant.check_batch(of_rewards([0.5] * 16, tokens=few)).state is NOT_APPLICABLE
    unseen = of_rewards([0.5] * 16, tokens=None)
    assert reward_constant.check_batch(unseen).state is NO_DATA
    texts = {"completion": [f"answer {row}" for row in range(16)]}
    assert reward_constant.check_batch(replace(unseen, texts=texts)).state is FINDING


def test_unscored_rows_are_no_reward():
    assert reward_constant.check_batch(of_rewards([0.5] * 12 + [np.nan] * 4)).state is FINDING
    assert reward_constant.check_batch(of_rewards([0.5] * 7 + [np.nan] * 9)).state is NO_DATA


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"reward_mean": 0.25, "reward_std": 0.0}, FINDING),
        ({"reward_mean": 1.0, "reward_std": 0.0}, FINDING),  # it never varied
        ({"reward_mean": 0.0, "reward_std": 0.0}, FINDING),
        ({"reward_mean": 0.25, "reward_std": 0.1}, HEALTHY),
        ({"reward_mean": np.linspace(0.0, 0.3, 60), "reward_std": 0.0}, HEALTHY),
        ({"rollouts_scored": 48, "rollouts_unscored": 80}, FINDING),
        ({"rollouts_scored": 80, "rollouts_unscored": 48}, HEALTHY),
    ],
)
def test_curves_of_a_constant_or_failing_reward(columns, state):
    assert reward_constant.check_curves(healthy_curves(**columns)).state is state


@pytest.mark.parametrize(("steps", "state"), [(2, NO_DATA), (3, FINDING)])
def test_a_constant_curve_needs_three_steps(steps, state):
    assert reward_constant.check_curves(healthy_curves(steps=steps, reward_mean=0.25, reward_std=0.0)).state is state


# ---------------------------------------------------------------- group_order


def named(prompts, **values):
    rows = len(prompts)
    return Batch.of({"group_ids": np.arange(rows) // 2, "tokens": TOKENS[:rows], **values}, {"prompt_id": prompts})


def test_rows_of_a_group_share_the_prompt():
    assert group_order.check_batch(named(list("aabb"))).state is HEALTHY
    assert group_order.check_batch(named(list("aaaa"))).state is HEALTHY  # one prompt drawn twice
    verdict = group_order.check_batch(named(list("abab")))
    assert (verdict.state, verdict.confidence) == (FINDING, Confidence.PROVEN)
    assert "repeat_interleave" in verdict.message
    assert "repeat_interleave" not in group_order.check_batch(named(list("abba"))).message


def test_a_name_counts_more_than_tokens():
    tokens = {"prompt_tokens": [[1], [2], [3], [4]]}
    assert group_order.check_batch(named(list("aabb"), **tokens)).state is HEALTHY  # turns of one conversation


def test_prompts_known_by_tokens_are_compared_without_their_padding():
    group_ids, prompts_BP = [0, 0, 1, 1], [[0, 7], [7, 0], [8, 9], [8, 9]]
    mask_BP = [[0, 1], [1, 0], [1, 1], [1, 1]]
    batch = Batch.of({"group_ids": group_ids, "prompt_tokens": prompts_BP, "prompt_mask": mask_BP})
    assert group_order.check_batch(batch).state is HEALTHY
    different = edit_batch(batch, prompt_tokens=[[0, 7], [6, 0], [8, 9], [8, 9]])
    assert group_order.check_batch(different).confidence is Confidence.LIKELY
    mixed = edit_batch(batch, prompt_tokens=[[0, 7], [6, 0], [0, 7], [6, 0]], prompt_mask=[[0, 1], [1, 0]] * 2)
    assert group_order.check_batch(mixed).confidence is Confidence.PROVEN


def test_groups_of_one_row_and_unknown_prompts_are_not_judged():
    alone = Batch.of({"group_ids": [0, 1]}, {"prompt_id": ["a", "b"]})
    assert group_order.check_batch(alone).state is NO_DATA
    with pytest.raises(Missing, match="prompt_tokens"):
        group_order.check_batch(Batch.of({"group_ids": [0, 0]}))


# ---------------------------------------------------------------- returns_from_whitened


def critic(gained, raw=None):
    """One row; the critic predicted 2 everywhere."""
    gained = np.asarray(gained, dtype=float)[None]
    raw = None if raw is None else np.asarray(raw, dtype=float)[None]
    fields = {"mask": np.ones(gained.shape), "values": np.full(gained.shape, 2.0), "returns": 2.0 + gained}
    return Batch.of({**fields, "raw_advantages": raw})


RAW = np.tile([0.0, 1.0, 3.0, 0.5], 10)
WHITE = (RAW - RAW.mean()) / RAW.std()


@pytest.mark.parametrize(
    ("gained", "raw", "state", "confidence"),
    [
        (RAW, RAW, HEALTHY, None),
        (WHITE, RAW, FINDING, Confidence.PROVEN),
        (RAW / RAW.std(), RAW, FINDING, Confidence.LIKELY),  # scaled without moving the mean
        (WHITE, None, FINDING, Confidence.LIKELY),
        (RAW, None, HEALTHY, None),
        (np.roll(RAW, 1), RAW, NOT_APPLICABLE, None),  # a critic with a lambda of its own
        (WHITE[:12], RAW[:12], NO_DATA, None),
        (np.zeros(40), np.zeros(40), NO_DATA, None),
    ],
)
def test_returns_are_made_of_raw_advantages(gained, raw, state, confidence):
    verdict = returns_from_whitened.check_batch(critic(gained, raw))
    assert verdict.state is state
    assert confidence is None or verdict.confidence is confidence


def test_grpo_has_no_critic_and_lays_no_rewards_on_tokens():
    assert returns_from_whitened.check_batch(healthy_batch()).state is NOT_APPLICABLE
    assert reward_position.check_batch(healthy_batch()).state is NOT_APPLICABLE


# ---------------------------------------------------------------- zero_signal

MIXED = [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("groups", "settings", "state", "confidence", "severity"),
    [
        ([MIXED, [0] * 4, [0] * 4, [0] * 4], {}, HEALTHY, None, None),  # three of four: the limit itself
        ([[0] * 4] * 4, {}, FINDING, Confidence.POSSIBLE, None),  # too hard, or broken
        ([[1] * 4] * 4, {"max_reward": 1.0}, HEALTHY, None, None),  # solved
        ([[1] * 4, [1] * 4, [0] * 4, [0] * 4], {"max_reward": 1.0}, FINDING, Confidence.LIKELY, Severity.HARMFUL),
        ([[0.3] * 4] * 4, {}, FINDING, Confidence.POSSIBLE, None),  # reward_constant's
        ([[0] * 4] * 3, {}, NO_DATA, None, None),
        ([[0, 0, 0, np.nan]] * 4, {}, FINDING, Confidence.POSSIBLE, None),
        ([[0, np.nan, np.nan, np.nan]] * 4, {}, NO_DATA, None, None),
    ],
)
def test_groups_without_signal_by_kind(groups, settings, state, confidence, severity):
    verdict = zero_signal.check_batch(of_rewards(np.concatenate(groups), **settings))
    assert verdict.state is state
    if state is FINDING:
        assert (verdict.confidence, verdict.severity) == (confidence, severity)


def test_a_mostly_solved_batch_is_healthy():
    rewards_B = np.concatenate([[1.0] * 4] * 7 + [[0.0] * 4] * 2 + [MIXED])
    values = {"tokens": np.arange(40)[:, None], "group_ids": np.arange(40) // 4, "rewards": rewards_B}
    assert zero_signal.check_batch(Batch.of({**values, "max_reward": 1.0})).state is HEALTHY
    assert zero_signal.check_batch(Batch.of({**values, "max_reward": 2.0})).state is FINDING


def test_advantages_may_tell_answers_of_equal_sum_apart():
    advantages_BT = np.tile([[1.0], [-1.0]], (8, 1))  # process rewards, or two that add up
    assert zero_signal.check_batch(of_rewards([0.5] * 16, advantages=advantages_BT)).state is HEALTHY
    assert zero_signal.check_batch(of_rewards([0.5] * 16, advantages=np.zeros(16))).state is FINDING


@pytest.mark.parametrize(
    ("share", "mean", "state"), [(0.75, 0.3, HEALTHY), (0.8, 0.3, FINDING), (0.8, 0.92, HEALTHY), (1.0, 0.0, FINDING)]
)
def test_curves_without_signal_unless_solved(share, mean, state):
    curves = healthy_curves(zero_variance_share=share, reward_mean=mean)
    assert zero_signal.check_curves(curves).state is state


# ---------------------------------------------------------------- reward_misaligned


def twins(rewards, answers):
    """Rows of one prompt; rows with the same letter are the same answer."""
    tokens_BT = [[ord(letter)] for letter in answers]
    values = {"tokens": tokens_BT, "rewards": rewards, "group_ids": np.zeros(len(rewards))}
    return Batch.of(values, {"prompt_id": ["q"] * len(rewards)})


def test_identical_rows_have_identical_rewards():
    assert reward_misaligned.check_batch(twins([1, 0, 1, 0], "abab")).state is HEALTHY
    assert reward_misaligned.check_batch(twins([1, 0, 1, 1], "abcd")).state is NO_DATA
    assert reward_misaligned.check_batch(twins([1, 0, np.nan, 0], "abab")).state is HEALTHY
    noisy = reward_misaligned.check_batch(twins([0.8, 0.1, 0.7, 0.1], "abab"))
    assert (noisy.state, noisy.confidence, noisy.severity) == (FINDING, Confidence.POSSIBLE, Severity.HARMFUL)


def test_the_rows_that_are_named_are_two_that_differ():
    message = reward_misaligned.check_batch(twins([0.5, 0.5, 0.0], "aaa")).message
    assert "rows 0 and 2 hold the same prompt and completion and got 0.5 and 0" in message


def test_rewards_moved_by_a_row_are_told_from_noise():
    answers = "abbabaabbbabaabababbabbaabaabbabbbaabbab"
    right = np.array([float(letter == "a") for letter in answers])
    for move, words in ((1, "1 row up"), (-1, "1 row down"), (2, "2 rows up")):
        verdict = reward_misaligned.check_batch(twins(np.roll(right, move), answers))
        assert (verdict.state, verdict.confidence) == (FINDING, Confidence.LIKELY)
        assert words in verdict.message
    flipped = right.copy()
    flipped[[3, 8]] = 1 - flipped[[3, 8]]
    assert reward_misaligned.check_batch(twins(flipped, answers)).confidence is Confidence.POSSIBLE
    # four rows agree after some move by luck: that is no evidence
    assert reward_misaligned.check_batch(twins([0, 1, 1, 0], "aabb")).confidence is Confidence.POSSIBLE


def test_a_move_inside_of_groups_is_named():
    (healthy,) = reward_misaligned.ILLNESS.well().batches
    rewards_GS = healthy.arrays["rewards"].reshape(-1, 4)
    verdict = reward_misaligned.check_batch(edit_batch(healthy, rewards=np.roll(rewards_GS, 1, axis=1).ravel()))
    assert verdict.confidence is Confidence.LIKELY
    assert "inside each group" in verdict.message


def test_a_kl_in_the_reward_leaves_rounding_between_identical_rows():
    rounded = twins([1.0, 0.0, 1.01, 0.01], "abab")
    assert reward_misaligned.check_batch(rounded).state is FINDING
    assert reward_misaligned.check_batch(edit_batch(rounded, kl_placement="reward")).state is HEALTHY


# ---------------------------------------------------------------- reward_position


def laid(*rows, rewards, **values):
    """Rows of four columns of which the first three are in the mask."""
    mask_BT = np.tile([1, 1, 1, 0], (len(rows), 1))
    return Batch.of({"token_rewards": rows, "mask": mask_BT, "rewards": rewards, **values})


@pytest.mark.parametrize(
    ("row", "state", "words"),
    [
        ([0, 0, 2, 0], HEALTHY, ""),
        ([0.01, -0.02, 2.01, 0], HEALTHY, ""),  # what a KL penalty leaves
        ([0, 0, 0, 2], FINDING, "outside of the mask"),
        ([2, 0, 0, 0], FINDING, "first token"),
        ([0, 2, 0, 0], FINDING, "earlier token"),
        ([2, 2, 2, 0], FINDING, "every token"),
        ([0, 0, 0, 0], FINDING, "nowhere"),
        ([0, 0, 1, 1], NO_DATA, ""),  # fits no pattern: nobody is accused
    ],
)
def test_the_reward_sits_on_the_last_trainable_token(row, state, words):
    verdict = reward_position.check_batch(laid(row, row, rewards=[2.0, 2.0]))
    assert verdict.state is state
    assert state is not FINDING or words in verdict.message


def test_rewards_of_nothing_or_of_single_tokens_have_no_place():
    assert reward_position.check_batch(laid([0] * 4, [0] * 4, rewards=[0.0, np.nan])).state is NO_DATA
    short = edit_batch(laid([0, 0, 0, 2], [0, 0, 0, 2], rewards=[2, 2]), mask=[[1, 0, 0, 0]] * 2)
    assert reward_position.check_batch(short).state is NO_DATA
    stated = laid([2, 0, 0, 0], [2, 0, 0, 0], rewards=[2, 2], baseline="mean")
    assert reward_position.check_batch(stated).state is FINDING  # they were laid on tokens all the same
    steps = laid([2, 0, 0, 0], [2, 0, 0, 0], rewards=[2, 2], process_rewards=True)
    assert reward_position.check_batch(steps).state is NOT_APPLICABLE


def test_a_kl_penalty_is_taken_off_before_the_reward_is_looked_for():
    old_BT, ref_BT = np.full((2, 4), -1.0), np.full((2, 4), -2.0)  # k1 = 1, k3 = e^-1 = 0.37
    settings = {"kl_coef": 0.1, "kl_placement": "reward", "kl_estimator": "k1"}
    row = [-0.1, -0.1, 1.9, 0.0]
    batch = laid(row, row, rewards=[2, 2], old_logprobs=old_BT, ref_logprobs=ref_BT, **settings)
    assert reward_position.check_batch(batch).state is HEALTHY
    assert reward_position._penalty(batch, batch.arrays["mask"])[0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0])
    third = edit_batch(batch, kl_estimator="k3")
    assert reward_position._penalty(third, batch.arrays["mask"])[0, 0] == pytest.approx(0.1 * np.exp(-1.0))
    small = edit_batch(batch, rewards=[0.9, 0.9])  # less than ten penalties
    assert reward_position.check_batch(small).state is NO_DATA


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("illness", MINE, ids=lambda one: one.code)
@pytest.mark.parametrize("spoiled", ["empty mask", "nan", "no rows"])
def test_empty_and_broken_batches_neither_crash_nor_accuse(illness, spoiled):
    for batch in (healthy_batch(), *illness.well().batches):
        if spoiled == "empty mask" and "mask" in batch.arrays:
            batch = edit_batch(batch, mask=np.zeros_like(batch.arrays["mask"]))
        elif spoiled == "nan":
            names = [name for name, array in batch.arrays.items() if array.dtype.kind == "f"]
            batch = edit_batch(batch, **{name: np.full(batch.arrays[name].shape, np.nan) for name in names})
        elif spoiled == "no rows":
            batch = Batch.of({**batch.settings, **{name: values[:0] for name, values in batch.arrays.items()}})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (word,) = diagnose(Evidence((batch,)), [illness]).words
        assert word.verdict.state in (NO_DATA, NOT_APPLICABLE, HEALTHY), word.verdict.message

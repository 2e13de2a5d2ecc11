"""The law of credit where no listed formula fits: the baseline of each group is read off the numbers."""

import numpy as np
import pytest

from assay.doctor.laws.credit import check_batch, check_batches
from assay.record.batch import Batch
from assay.verdict import Confidence, State

R_PG = np.array(
    [
        [0.3, -1.1, 0.9, 0.2, 1.7, -0.4],
        [-0.6, 0.8, 0.1, 1.2, -1.5, 0.5],
        [2.1, 0.4, -0.3, 0.7, 0.6, -0.9],
        [1.0, -0.2, 0.5, 0.0, 0.8, 1.3],
        [-1.2, 0.6, 1.1, -0.7, 0.4, 0.9],
    ]
)
MEAN, STD = R_PG.mean(1, keepdims=True), R_PG.std(1, ddof=1, keepdims=True) + 1e-4
RIGHT = (R_PG - MEAN) / STD
STATED = {"baseline": "mean", "std": "sample", "scale": "group", "kl_coef": 0.0}


def batch_of(advantages_PG, rewards_PG=R_PG, step=1, **more):
    rows, size = rewards_PG.size, rewards_PG.shape[1]
    return Batch.of(
        {
            "rewards": rewards_PG.ravel(),
            "advantages": np.asarray(advantages_PG).ravel(),
            "group_ids": np.repeat(np.arange(len(rewards_PG)), size),
            "mask": np.ones((rows, 3), dtype=bool),
            "tokens": np.ones((rows, 3), dtype=np.int64),
            "group_size": size,
            "step": step,
            **more,
        }
    )


WRONG = {  # advantages, and a word of the finding
    "own reward kept": (R_PG - R_PG.sum(1, keepdims=True) / 5, "one less"),
    "own reward kept, over the std": ((R_PG - R_PG.sum(1, keepdims=True) / 5) / STD, "one less"),
    "mean of the positive rewards": ((R_PG - np.array([[r[r > 0].mean()] for r in R_PG])) / STD, "above 0"),
    "mean of the group before": ((R_PG - np.roll(MEAN, 1, axis=0)) / STD, "group before"),
    "mean added": ((R_PG + MEAN) / STD, "added"),
    "half the mean": (R_PG - MEAN / 2, "half"),
    "without the last row": ((R_PG - R_PG[:, :-1].mean(1, keepdims=True)) / STD, "without its last row"),
    "rows moved by one": (np.roll(RIGHT.ravel(), 1), "one before"),
    "members moved by one": (np.roll(RIGHT, 1, axis=1), "within each group"),
    "members reversed": (RIGHT[:, ::-1], "reverse order"),
    "laid out across": (RIGHT.T, "exchanged"),
    "sign lost": (np.abs(RIGHT), "without their sign"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_baseline_or_order_is_named(name):
    advantages, word = WRONG[name]
    verdict = check_batch(batch_of(advantages, **STATED))
    assert verdict.state is State.FINDING
    assert verdict.confidence is Confidence.PROVEN
    assert word in verdict.message


SOUND = {
    "over the std": RIGHT,
    "no std": R_PG - MEAN,
    "leave one out": R_PG - (R_PG.sum(1, keepdims=True) - R_PG) / 5,
    "over the range": (R_PG - MEAN) / np.ptp(R_PG, axis=1, keepdims=True),
    "over the mean size": (R_PG - MEAN) / np.abs(R_PG - MEAN).mean(1, keepdims=True),
    "a running mean": R_PG - 0.31,
    "a critic": R_PG - np.array([[0.1], [0.7], [-0.2], [0.4], [0.05]]),
    "the median": R_PG - np.median(R_PG, axis=1, keepdims=True),
    "ranks": R_PG.argsort(1).argsort(1) - 2.5,
    "clipped": RIGHT.clip(-1, 1),
    "clipped above": np.minimum(RIGHT, 0.5),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_baseline_that_somebody_may_mean_is_no_finding(name):
    assert check_batch(batch_of(SOUND[name])).state is not State.FINDING


UNBIASED = {
    "the mean of the group before": np.roll(MEAN, 1, axis=0),
    "the mean of the other groups": (MEAN.sum() - MEAN) / 4,
    "a mean with one reward of 0 more": R_PG.sum(1, keepdims=True) / 7,
    "half the mean": MEAN / 2,
}


@pytest.mark.parametrize("name", UNBIASED)
def test_a_rare_baseline_without_a_bias_is_at_most_possible_where_no_setting_says_otherwise(name):
    verdict = check_batch(batch_of(R_PG - UNBIASED[name]))
    assert verdict.confidence is Confidence.POSSIBLE


def test_the_own_reward_in_a_mean_of_the_others_is_likely_without_any_setting():
    assert check_batch(batch_of(WRONG["own reward kept"][0])).confidence is Confidence.LIKELY


def test_a_baseline_of_two_groups_alone_is_not_judged():
    verdict = check_batch(batch_of(WRONG["half the mean"][0][:2], R_PG[:2], **STATED))
    assert verdict.state is not State.FINDING


def test_groups_are_those_of_equal_prompts_where_none_are_given():
    prompts = np.repeat(np.arange(5), 6)[:, None]
    whole = batch_of(WRONG["own reward kept"][0], **STATED, prompt_tokens=prompts, prompt_mask=np.ones((30, 1)))
    without = Batch.of(
        {name: value for name, value in {**whole.arrays, **whole.settings, "step": 1}.items() if name != "group_ids"}
    )
    assert "one less" in check_batch(without).message


def visits(baseline_of):
    """The same prompts in three steps with other rewards each; `baseline_of(step, means)` gives the level."""
    batches, means = [], []
    for step in range(3):
        rewards = np.roll(R_PG, step, axis=1) * (1 + 0.3 * step)
        means.append(rewards.mean(1, keepdims=True))
        prompts = np.repeat(np.arange(5), 6)[:, None]
        more = {"prompt_tokens": prompts, "prompt_mask": np.ones((30, 1))}
        batches.append(batch_of(rewards - baseline_of(step, means), rewards, step + 1, **more))
    return batches


def test_the_baseline_of_the_first_visit_is_named():
    verdict = check_batches(visits(lambda step, means: means[0]))
    assert verdict.state is State.FINDING
    assert verdict.confidence is Confidence.PROVEN
    assert "earlier visit" in verdict.message


def test_own_means_and_running_means_over_several_steps_are_no_finding():
    for baseline_of in (lambda step, means: means[-1], lambda step, means: np.mean(means, axis=0) * 0.7):
        assert check_batches(visits(baseline_of)).state is not State.FINDING


def test_a_mean_kept_from_before_is_seen_by_its_age():
    ages = [0, 0, 2, 3]
    kept = [batch_of(RIGHT + 0.2 * bool(age), step=step, baseline_age=age) for step, age in enumerate(ages, 1)]
    verdict = check_batches(kept)
    assert verdict.state is State.FINDING
    assert "kept" in verdict.message
    own = [batch_of(RIGHT, step=step, baseline_age=0) for step in range(1, 5)]
    assert check_batches(own).state is not State.FINDING

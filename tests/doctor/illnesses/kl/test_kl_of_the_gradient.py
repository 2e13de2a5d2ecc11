"""The KL that the gradient holds is named where it reproduces the numbers, and nothing is said where it does not."""

import numpy as np
import pytest

from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.recompute.consistent import consistent
from assay.verdict import Confidence, State

COEF = 0.4
KL04 = next(illness for illness in catalogue() if illness.code == "KL04")
UNSEEN = dict.fromkeys(("kl", "kl_loss", "kl_mean", "token_loss", "loss", "policy_loss"))


def batch_of(slope=None, factor=1.0, update=0, noise=0.0, **settings):
    """The gradient is the policy part (without a KL) + COEF * factor * slope(new - ref) / loss tokens, as dapo weighs
    them; by default the right slope of k3."""
    batch = consistent(healthy_batch(update=update), kl_coef=COEF, **settings)
    if slope is None:
        return edit_batch(batch, **UNSEEN)
    mask_BT = batch.arrays["mask"]
    policy_BT = consistent(batch, kl_coef=0.0).arrays["gradients"]
    d_BT = np.where(mask_BT, batch.arrays["new_logprobs"] - batch.arrays["ref_logprobs"], 0.0)
    kl_BT = np.where(mask_BT, COEF * factor * slope(d_BT) / mask_BT.sum(), 0.0)
    kl_BT = kl_BT * (1 + noise * np.random.default_rng(0).standard_normal(mask_BT.shape))
    return edit_batch(batch, gradients=policy_BT + kl_BT, **UNSEEN)


def verdict(batch):
    (word,) = diagnose(Evidence((batch,)), [KL04]).words
    return word.verdict


def k3(d):
    return 1 - np.exp(-d)


def test_two_that_cannot_be_told_apart_are_named_together():
    # r k3 has the slope r (k3 + 1 - exp(-d)) = d where r = 1, and d is the slope of k2
    said = verdict(batch_of(lambda d: d))
    assert said.confidence is Confidence.POSSIBLE
    assert "k2 or k3 times the ratio" in said.message
    later = verdict(batch_of(lambda d: d, update=1))
    assert later.confidence is Confidence.PROVEN
    assert "is k2;" in later.message


def test_a_coefficient_of_one_is_neither_missing_nor_multiplied_twice():
    batch = edit_batch(consistent(healthy_batch(), kl_coef=1.0), **UNSEEN)
    assert verdict(batch).state is State.HEALTHY


@pytest.mark.parametrize(
    ("slope", "name"),
    [
        (lambda d: np.exp(d) + 1, "exp(new - ref) + (new - ref) - 1"),
        (lambda d: -np.exp(-d) - 1, "exp(ref - new) + (ref - new) - 1"),
        (lambda d: np.exp(d) - 1, "k3 with ref and new exchanged"),
        (lambda d: np.ones(d.shape), "is k1;"),
        (lambda d: -np.ones(d.shape), "k1 with the sign flipped"),
    ],
)
@pytest.mark.parametrize("update", [0, 1])
def test_a_wrong_kl_is_named_by_its_slope(slope, name, update):
    said = verdict(batch_of(slope, update=update))
    assert (said.state, said.confidence) == (State.FINDING, Confidence.PROVEN), said.message
    assert name in said.message


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (COEF, "multiplied twice"),
        (1 / COEF, "is missing"),
        (2.0, "added twice"),
        (4.0, "4 times the configured one"),
    ],
)
def test_a_wrong_coefficient_is_named(factor, words):
    said = verdict(batch_of(k3, factor))
    assert said.state is State.FINDING
    assert words in said.message
    assert said.confidence is (Confidence.LIKELY if factor == 4.0 else Confidence.PROVEN)


@pytest.mark.parametrize("scale", [1.0, 0.25, 8.0])
@pytest.mark.parametrize("gradient", ["naive", "unbiased"])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize("objective", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_the_right_kl_is_healthy_whatever_the_whole_loss_is_divided_by(objective, update, estimator, gradient, scale):
    batch = batch_of(update=update, kl_estimator=estimator, kl_gradient=gradient, objective=objective)
    said = verdict(edit_batch(batch, gradients=scale * batch.arrays["gradients"]))
    assert said.state is State.HEALTHY, said.message


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_a_kl_that_is_absent_or_flipped_is_left_to_those_who_know_it(factor):
    assert verdict(batch_of(k3, factor)).state is not State.FINDING


def test_an_unknown_function_of_the_distance_is_said_to_be_the_kls_fault():
    said = verdict(batch_of(lambda d: 3 * d**3 + 0.2 * np.sin(3 * d)))
    assert (said.state, said.confidence) == (State.FINDING, Confidence.LIKELY)
    assert "not the slope of k3" in said.message


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_what_is_no_function_of_the_distance_is_not_called_a_kl(noise):
    assert verdict(batch_of(k3, noise=noise)).state is not State.FINDING


def test_a_policy_part_that_is_off_is_not_blamed_on_the_kl():
    batch = batch_of()
    halved_BT = np.where(batch.token_advantages < 0, 0.5, 1.0) * batch.arrays["gradients"]
    assert verdict(edit_batch(batch, gradients=halved_BT)).state is not State.FINDING


@pytest.mark.parametrize("setting", ["kl_estimator", "kl_gradient", "correction", "clip_high"])
def test_nothing_is_claimed_where_a_setting_is_not_stated(setting):
    said = verdict(edit_batch(batch_of(lambda d: np.exp(d) + 1), **{setting: None}))
    assert said.state is not State.FINDING

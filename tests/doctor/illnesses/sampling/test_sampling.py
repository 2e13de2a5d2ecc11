"""Numbers of the sampling illnesses that the generic tests do not see: both sides of the limits, deliberate variants.

Shape legend: B completions, T completion tokens, V vocabulary.
"""

import math

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import SIZE, B, T, chosen_rows, edit_batch, healthy_batch, healthy_curves
from assay.doctor.facts.repeats import log_chances
from assay.doctor.illnesses.sampling import (
    engine_mismatch,
    fixed_seed,
    no_diversity,
    temperature_mismatch,
    truncated_sampling,
)
from assay.verdict import Confidence, Missing, State

MINE = [one.ILLNESS for one in (temperature_mismatch, truncated_sampling, no_diversity, fixed_seed, engine_mismatch)]


def fact(verdict, what):
    (value,) = [one.value for one in verdict.facts if one.what.startswith(what)]
    return value


def log_softmax(logits_NV):
    return logits_NV - np.logaddexp.reduce(logits_NV, axis=1, keepdims=True)


def sampled_at(temperature, vocabulary=50, seed=0):
    """Log-probs of sampled tokens at that temperature and at 1: (tempered_BT, raw_BT) of a made-up model."""
    random = np.random.default_rng(seed)
    rows, tokens = 40, 25
    logits_NV = random.standard_normal((rows * tokens, vocabulary)) * random.uniform(1, 3, size=(rows * tokens, 1))
    tempered_NV, raw_NV = log_softmax(logits_NV / temperature), log_softmax(logits_NV)
    chosen_N = (tempered_NV + random.gumbel(size=tempered_NV.shape)).argmax(axis=1)
    places = np.arange(rows * tokens), chosen_N
    return tempered_NV[places].reshape(rows, tokens), raw_NV[places].reshape(rows, tokens)


def batch_of(**values):
    shape = next(value.shape for value in values.values() if isinstance(value, np.ndarray) and value.ndim == 2)
    return Batch.of({"mask": np.ones(shape, dtype=bool), "step": 3, "update": 0, **values})


def noise(shape, spread, seed=1):
    return np.random.default_rng(seed).normal(0.0, spread, size=shape)


@pytest.mark.parametrize("temperature", [0.6, 0.7, 0.9, 1.3])
def test_a_forgotten_temperature_shows_against_the_sampler_alone(temperature):
    tempered_BT, raw_BT = sampled_at(temperature)
    sick = batch_of(old_logprobs=raw_BT, sampler_logprobs=tempered_BT, temperature=temperature)
    verdict = temperature_mismatch.check_batch(sick)
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)
    assert np.sign(fact(verdict, "slope")) == np.sign(temperature - 1)
    well = batch_of(old_logprobs=tempered_BT, sampler_logprobs=tempered_BT, temperature=temperature)
    assert temperature_mismatch.check_batch(well).state is State.HEALTHY


def test_without_a_stated_temperature_only_a_strong_slope_counts():
    for temperature, state in ((0.6, State.FINDING), (0.95, State.HEALTHY)):
        tempered_BT, raw_BT = sampled_at(temperature)
        verdict = temperature_mismatch.check_batch(batch_of(old_logprobs=raw_BT, sampler_logprobs=tempered_BT))
        assert verdict.state is state, temperature


def test_beside_a_stated_1_the_engine_may_have_a_temperature_of_its_own():
    tempered_BT, raw_BT = sampled_at(0.6)
    batch = batch_of(old_logprobs=raw_BT, sampler_logprobs=tempered_BT, temperature=1.0)
    assert temperature_mismatch.check_batch(batch).confidence is Confidence.LIKELY


def test_noise_stale_weights_and_truncation_are_not_called_a_temperature():
    tempered_BT, _ = sampled_at(0.7)
    for old_BT in (tempered_BT + noise(tempered_BT.shape, 0.3), tempered_BT - 0.1, np.roll(tempered_BT, 1, axis=1)):
        batch = batch_of(old_logprobs=old_BT, sampler_logprobs=tempered_BT, temperature=0.7)
        assert temperature_mismatch.check_batch(batch).state is State.HEALTHY
    one_sided_BT = 0.75 * tempered_BT + 0.01  # the right slope, but nothing moves down
    for sampler_BT, old_BT in ((tempered_BT + noise(tempered_BT.shape, 1.4), tempered_BT), (tempered_BT, one_sided_BT)):
        batch = batch_of(old_logprobs=old_BT, sampler_logprobs=sampler_BT, temperature=0.7)
        assert temperature_mismatch.check_batch(batch).state is State.HEALTHY


def test_the_untempered_side_is_named():
    tempered_BT, raw_BT = sampled_at(0.7)
    right = dict.fromkeys(("old_logprobs", "new_logprobs", "sampler_logprobs"), tempered_BT)
    again = {"plain_logprobs": tempered_BT, "plain_raw_logprobs": raw_BT, "temperature": 0.7}
    assert temperature_mismatch.check_batch(batch_of(**right, **again)).state is State.HEALTHY
    for side, words in (("old", "old"), ("new", "new"), ("sampler", "the sampler's")):
        verdict = temperature_mismatch.check_batch(batch_of(**{**right, f"{side}_logprobs": raw_BT}, **again))
        assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
        assert verdict.message.startswith(words if side == "sampler" else f"the trainer's {words} log-probs")
        assert bool(verdict.fix) == (side == "sampler")  # the trainer is right, the engine must change


def test_rounding_of_bfloat16_is_not_a_temperature():
    tempered_BT, raw_BT = sampled_at(0.97)
    close = batch_of(
        old_logprobs=tempered_BT + noise(tempered_BT.shape, 0.04),
        sampler_logprobs=tempered_BT,
        plain_logprobs=tempered_BT,
        plain_raw_logprobs=raw_BT,
        temperature=0.97,
        dtype="bfloat16",
    )
    assert temperature_mismatch.check_batch(close).state is State.HEALTHY


def test_a_temperature_needs_two_sides():
    with pytest.raises(Missing, match="sampler_logprobs"):
        temperature_mismatch.check_batch(batch_of(old_logprobs=sampled_at(0.7)[0], temperature=0.7))


FIVE = np.log([0.5, 0.3, 0.1, 0.06, 0.04])


def cut_to_two(**settings):
    """top_k = 2 of five: what survives is 0.8, so that log-probs rise by -log 0.8."""
    tokens_BT = np.random.default_rng(0).choice(2, p=[0.625, 0.375], size=(8, 10))
    old_BT = FIVE[tokens_BT]
    return batch_of(old_logprobs=old_BT, sampler_logprobs=old_BT - math.log(0.8), dtype="float32", **settings)


def test_truncation_shows_the_surviving_mass():
    verdict = truncated_sampling.check_batch(cut_to_two(top_k=2))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert fact(verdict, "mean of exp(old - sampler)") == pytest.approx(0.8)
    unstated = truncated_sampling.check_batch(cut_to_two(temperature=1.0))
    assert (unstated.state, unstated.confidence) == (State.FINDING, Confidence.LIKELY)
    sharp = truncated_sampling.check_batch(cut_to_two(temperature=0.7))  # a sharp policy at 0.7 looks the same
    assert (sharp.state, sharp.confidence) == (State.FINDING, Confidence.POSSIBLE)
    lost = truncated_sampling.check_batch(cut_to_two(top_k=2, support_kept=True))
    assert "meant to renormalise" in lost.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_missing_mass_has_a_limit(dtype):
    old_BT = np.full((10, 20), -1.0)
    least = truncated_sampling.LEAST_MISSING if dtype == "float32" else truncated_sampling.LEAST_MISSING_LOW_PRECISION
    for mass, state in ((1 - 0.9 * least, State.HEALTHY), (1 - 1.1 * least, State.FINDING)):
        batch = batch_of(old_logprobs=old_BT, sampler_logprobs=old_BT - math.log(mass), dtype=dtype, top_p=0.9)
        assert truncated_sampling.check_batch(batch).state is state, mass


def test_truncation_that_is_trained_and_truncation_that_cuts_nothing_are_healthy():
    old_BT = np.full((4, 10), -1.0)
    for settings in ({"support_kept": True}, {"support_kept": False}):
        batch = batch_of(old_logprobs=old_BT, sampler_logprobs=old_BT, top_k=50, dtype="float32", **settings)
        assert truncated_sampling.check_batch(batch).state is State.HEALTHY


def test_noise_of_both_signs_and_another_tokens_log_prob_are_not_truncation():
    old_BT = np.full((20, 20), -1.0)
    noisy = batch_of(
        old_logprobs=old_BT, sampler_logprobs=old_BT + np.abs(noise(old_BT.shape, 0.4)) - 0.2, dtype="float32"
    )
    assert truncated_sampling.check_batch(noisy).state is State.HEALTHY
    first_entry_BT = old_BT.copy()
    first_entry_BT[:, ::4] += 0.9  # right at three tokens of four, far too high at the fourth
    swapped = batch_of(old_logprobs=old_BT, sampler_logprobs=first_entry_BT, dtype="float32")
    assert truncated_sampling.check_batch(swapped).state is State.HEALTHY


def groups_of_four(rows, logprob, **values):
    """Two groups of four; `rows` name the completion of each row by a token of its own, three tokens long."""
    tokens_BT = np.repeat(np.array(rows)[:, None], 3, axis=1)
    logprobs_BT = np.full(tokens_BT.shape, logprob / 3)
    given = {"tokens": tokens_BT, "lengths": [3] * 8, "group_ids": [0] * 4 + [1] * 4, "old_logprobs": logprobs_BT}
    return batch_of(**{**given, "temperature": 1.0, **values})


def test_equal_completions_are_weighed_by_their_probability():
    certain = no_diversity.check_batch(groups_of_four([5] * 4 + [6] * 4, math.log(0.5)))
    assert certain.state is State.HEALTHY
    assert fact(certain, "log10 of the chance") == pytest.approx(6 * math.log10(0.5), abs=0.31)  # half is staked on it
    rare = no_diversity.check_batch(groups_of_four([5] * 4 + [6] * 4, math.log(0.01)))
    assert (rare.state, rare.confidence) == (State.FINDING, Confidence.PROVEN)
    assert fact(rare, "log10 of the chance") == pytest.approx(-12.0, abs=0.31)
    assert fact(rare, "probability of the completion") == pytest.approx(0.01)


def test_one_different_row_in_each_group_is_diversity():
    assert no_diversity.check_batch(groups_of_four([5, 5, 5, 7, 6, 6, 7, 6], -9.0)).state is State.HEALTHY


def test_half_of_the_groups_are_enough():
    assert no_diversity.check_batch(groups_of_four([5] * 4 + [6, 6, 7, 6], -9.0)).state is State.FINDING


def test_top_k_of_one_is_found_however_certain_it_makes_the_policy():
    verdict = no_diversity.check_batch(groups_of_four([5] * 4 + [6] * 4, 0.0, top_k=1))
    assert verdict.state is State.FINDING
    assert "top_k = 1" in verdict.message


def test_a_greedy_engine_that_reports_probability_1_is_not_believed():
    greedy = groups_of_four([5] * 4 + [6] * 4, -6.0, sampler_logprobs=np.zeros((8, 3)))
    assert log_chances(greedy) == pytest.approx([-6.0] * 8)
    assert no_diversity.check_batch(greedy).state is State.FINDING


def test_a_trainer_that_is_off_does_not_make_common_answers_rare():
    honest_BT = np.full((8, 3), -0.1)
    batch = groups_of_four([5] * 4 + [6] * 4, -60.0, sampler_logprobs=honest_BT)
    assert no_diversity.check_batch(batch).state is State.HEALTHY


def test_equal_completions_without_log_probs_are_not_judged():
    batch = groups_of_four([5] * 4 + [6] * 4, -9.0, old_logprobs=None)
    with pytest.raises(Missing, match="plain_logprobs"):
        no_diversity.check_batch(batch)
    assert no_diversity.check_batch(groups_of_four([5, 6, 7, 8] * 2, -9.0, old_logprobs=None)).state is State.HEALTHY


def test_groups_of_one_have_nothing_to_compare():
    alone = groups_of_four([5] * 8, -9.0, group_ids=list(range(8)))
    for check in (no_diversity.check_batch, fixed_seed.check_batch):
        assert check(alone).state is State.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("rows", "words"),
    [([5, 6, 5, 6, 7, 8, 7, 8], "repeats after 2 rows"), ([5, 5, 6, 6, 7, 7, 8, 8], "comes 2 times in a row")],
)
def test_a_pattern_of_copies_in_every_group_is_proven(rows, words):
    verdict = fixed_seed.check_batch(groups_of_four(rows, math.log(1e-3)))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.PROVEN)
    assert words in verdict.message
    assert fact(verdict, "log10 of the chance") == pytest.approx(-12.0)  # four copies
    assert fixed_seed.check_batch(groups_of_four(rows, math.log(0.1))).state is State.HEALTHY


def test_improbable_completions_that_come_again_anywhere_are_likely_copies():
    rows = [5, 6, 7, 9, 7, 5, 6, 8]  # three answers of the first group, in another order, in the second
    verdict = fixed_seed.check_batch(groups_of_four(rows, math.log(1e-9)))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)
    assert fact(verdict, "improbable completions") == 3
    assert fixed_seed.check_batch(groups_of_four(rows, math.log(1e-7))).state is State.HEALTHY
    assert fixed_seed.check_batch(groups_of_four([5, 6, 7, 9, 7, 5, 8, 8], math.log(1e-9))).state is State.FINDING
    assert fixed_seed.check_batch(groups_of_four([5, 6, 7, 9, 7, 5, 8, 4], math.log(1e-9))).state is State.HEALTHY


def test_a_pattern_in_half_of_the_groups_is_an_accident():
    assert fixed_seed.check_batch(groups_of_four([5, 6, 5, 6, 7, 8, 9, 4], math.log(1e-6))).state is State.HEALTHY


def test_groups_of_equal_rows_are_left_to_no_diversity():
    assert fixed_seed.check_batch(groups_of_four([5] * 4 + [6] * 4, -30.0)).state is State.NOT_APPLICABLE


def mismatched(spread, **values):
    old_BT = np.full((40, 50), -2.0)
    return batch_of(old_logprobs=old_BT, sampler_logprobs=old_BT + noise(old_BT.shape, spread), **values)


def test_the_effective_share_is_hand_worked():
    assert engine_mismatch.effective_share(np.log([1.0, 1.0, 2.0])) == pytest.approx(16 / 18)
    assert engine_mismatch.effective_share(np.array([0.0, -1000.0])) == pytest.approx(0.5)
    assert engine_mismatch.effective_share(np.array([])) == 1.0


def test_the_health_of_the_mismatch_is_told_by_hand_worked_numbers():
    old_BT, sampler_BT = np.array([[-1.0, -1.0], [-1.0, np.nan]]), np.array([[-1.5, -0.5], [-1.0, -1.0]])
    verdict = engine_mismatch.check_batch(batch_of(old_logprobs=old_BT, sampler_logprobs=sampler_BT, dtype="float32"))
    assert fact(verdict, "mean |old - sampler|") == pytest.approx(1.0 / 3)
    assert fact(verdict, "largest") == pytest.approx(0.5)
    assert fact(verdict, "KL(sampler || old), mean") == pytest.approx(0.0)
    k3 = (math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5 + 0.0) / 3
    assert fact(verdict, "KL(sampler || old), k3") == pytest.approx(k3)
    weights = [math.exp(0.5), math.exp(-0.5), 1.0]
    share = sum(weights) ** 2 / (3 * sum(weight**2 for weight in weights))
    assert fact(verdict, "effective share of the tokens") == pytest.approx(share)
    assert fact(verdict, "effective share of the rows") == pytest.approx(1.0)  # the row's differences cancel


@pytest.mark.parametrize(
    ("dtype", "spread", "state"),
    [
        ("float32", 0.0002, State.HEALTHY),
        ("float32", 0.002, State.FINDING),
        ("bfloat16", 0.04, State.HEALTHY),
        ("bfloat16", 0.15, State.FINDING),
        (None, 0.1, State.HEALTHY),
        (None, 0.2, State.FINDING),
    ],
)
def test_what_is_rounding_depends_on_the_precision(dtype, spread, state):
    assert engine_mismatch.check_batch(mismatched(spread, dtype=dtype)).state is state


def test_a_few_heavy_weights_are_found_though_the_mean_is_small():
    old_BT = np.full((40, 50), -1.0)
    sampler_BT = old_BT.copy()
    sampler_BT[0, :2] -= 6.0  # two tokens that weigh 400 times as much: mean |old - sampler| is 0.006
    batch = batch_of(old_logprobs=old_BT, sampler_logprobs=sampler_BT, dtype="bfloat16")
    assert engine_mismatch.check_batch(batch).state is State.FINDING


def test_the_model_asked_plainly_says_which_side_is_off():
    old_BT = np.full((4, 10), -2.0)
    other_BT = old_BT - 0.3
    values = {"old_logprobs": old_BT, "sampler_logprobs": other_BT, "dtype": "float32", "policy_version": 0}
    for plain_BT, word in ((old_BT, "the engine is off"), (other_BT, "the trainer is off")):
        verdict = engine_mismatch.check_batch(batch_of(**values, plain_logprobs=plain_BT))
        assert verdict.confidence is Confidence.PROVEN
        assert word in verdict.message
    unsure = engine_mismatch.check_batch(batch_of(**values, plain_logprobs=old_BT - 5.0))
    assert unsure.confidence is Confidence.LIKELY
    later = {**values, "policy_version": 4, "plain_logprobs": old_BT}
    trained = engine_mismatch.check_batch(batch_of(**later, correction="off"))
    assert trained.confidence is Confidence.LIKELY  # older weights would look the same
    assert engine_mismatch.check_batch(batch_of(**later)).confidence is Confidence.POSSIBLE  # they may be corrected


def test_rows_of_an_older_policy_under_a_correction_are_healthy():
    older = {"sampler_versions": [3] * 40, "policy_version": 4}
    assert engine_mismatch.check_batch(mismatched(0.5, **older, correction="token")).state is State.HEALTHY
    assert engine_mismatch.check_batch(mismatched(0.5, **older, correction="off")).state is State.FINDING


def test_curves_are_judged_by_their_precision():
    def word(dtype, **columns):
        return engine_mismatch.check_curves(healthy_curves(settings={"dtype": dtype}, **columns)).state

    assert word("bfloat16", mismatch_mean=0.04, mismatch_max=0.9) is State.HEALTHY
    assert word("bfloat16", mismatch_mean=0.12, mismatch_max=0.9) is State.FINDING
    assert word("float32", mismatch_mean=0.0001, mismatch_max=0.002) is State.FINDING
    assert word("float32", mismatch_mean=0.0001, mismatch_max=0.0009) is State.HEALTHY


@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        {"mask": np.zeros((B, T), dtype=bool)},
        {"sampler_logprobs": np.full((B, T), np.nan), "plain_logprobs": np.full((B, T), np.nan)},
        {"old_logprobs": np.full((B, T), np.nan)},
        {"lengths": np.zeros(B, dtype=int)},
        {"temperature": 0.01},
        {"temperature": 0.7, "plain_logprobs": np.full((B, T), np.nan)},
    ],
)
def test_empty_masks_and_nan_break_nothing_and_accuse_nobody(update, changes):
    diagnosis = diagnose(Evidence((edit_batch(healthy_batch(update=update), **changes),)), MINE)
    assert not diagnosis.of(State.CRASHED), diagnosis.of(State.CRASHED)
    assert not diagnosis.findings


def test_a_solved_and_a_hopeless_run_are_left_alone():
    batch = healthy_batch()
    names = [name for name in batch.arrays if name.endswith("_logprobs")]
    certain = chosen_rows(batch, [row - row % SIZE for row in range(B)])
    solved = edit_batch(certain, rewards=[1.0] * B, **{name: 1e-4 * certain.arrays[name] for name in names})
    for patient in (solved, edit_batch(batch, rewards=[0.0] * B)):
        assert not diagnose(Evidence((patient,)), MINE).findings

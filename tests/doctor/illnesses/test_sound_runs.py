"""Sound runs that were accused, and one sick run that was not: repeats, clipping, low temperatures, lost shifts.

Shape legend: B completions, T completion tokens, V vocabulary.
"""

import math

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.illnesses.alignment import shift
from assay.doctor.illnesses.optimizer import no_update
from assay.doctor.illnesses.ratio import ratio_stuck_at_one
from assay.doctor.illnesses.sampling import engine_mismatch, no_diversity, temperature_mismatch
from assay.verdict import Confidence, Severity, State

FINDING, HEALTHY, NOT_APPLICABLE = State.FINDING, State.HEALTHY, State.NOT_APPLICABLE
NO_DATA = State.NOT_ENOUGH_DATA
PROVEN, LIKELY, POSSIBLE = Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE


def told(verdict):
    return verdict.state, verdict.confidence


# ---------------------------------------------------------------- no_diversity


def sampled(groups, size, *, certain, seed, greedy=False, **values):
    """Completions of one token: 0 with probability `certain`, else one of nine others; a policy of its own a group."""
    random = np.random.default_rng(seed)
    top_G = np.broadcast_to(certain, groups)
    others_GB = random.integers(1, 10, size=(groups, size))
    rows_GB = np.where(greedy | (random.random((groups, size)) < top_G[:, None]), 0, others_GB)
    logprobs_GB = np.where(rows_GB == 0, np.log(top_G)[:, None], np.log((1 - top_G) / 9)[:, None])
    count = groups * size
    given = {
        "tokens": rows_GB.reshape(count, 1),
        "mask": np.ones((count, 1)),
        "lengths": [1] * count,
        "group_ids": np.repeat(np.arange(groups), size),
        "old_logprobs": logprobs_GB.reshape(count, 1),
        "temperature": 1.0,
    }
    return Batch.of({**given, **values})


@pytest.mark.parametrize(
    ("groups", "size", "certain"),
    [
        (512, 8, 0.95), (256, 8, 0.92), (64, 16, 0.95), (512, 8, 0.99), (128, 4, 0.8), (16, 2, 0.6), (4, 4, 0.9),
        (2, 8, 0.9), (1024, 2, 0.75),
    ],
)  # fmt: skip
def test_honest_sampling_of_a_nearly_solved_task_is_never_accused(groups, size, certain):
    for seed in range(20):
        assert no_diversity.check_batch(sampled(groups, size, certain=certain, seed=seed)).state is HEALTHY


def test_honest_sampling_of_easy_and_hard_prompts_is_never_accused():
    for seed in range(20):
        certain_G = np.random.default_rng(seed).choice([0.3, 0.999], p=[0.4, 0.6], size=256)
        assert no_diversity.check_batch(sampled(256, 8, certain=certain_G, seed=seed)).state is HEALTHY


@pytest.mark.parametrize(("groups", "size", "certain"), [(512, 8, 0.5), (64, 16, 0.6), (16, 8, 0.3), (8, 4, 0.3)])
def test_greedy_decoding_of_an_uncertain_policy_is_proven(groups, size, certain):
    verdict = no_diversity.check_batch(sampled(groups, size, certain=certain, seed=0, greedy=True))
    assert told(verdict) == (FINDING, PROVEN)


def test_greedy_decoding_in_most_groups_only_is_likely():
    greedy_GB = (np.arange(64) < 44)[:, None]
    verdict = no_diversity.check_batch(sampled(64, 8, certain=0.5, seed=0, greedy=greedy_GB))
    assert told(verdict) == (FINDING, LIKELY)


def test_the_wager_against_honest_sampling_wins_nothing_on_average():
    # one group of three rows and two completions, 0.6 and 0.4: all outcomes by hand
    agree = {0.6: 0.6**3, 0.4: 0.4**3}
    mean = sum(chance * math.exp(no_diversity._log_evidence([3], [math.log(p)])) for p, chance in agree.items())
    mean += (1 - sum(agree.values())) * math.exp(no_diversity._log_evidence([3], [None]))
    assert mean == pytest.approx(1.0)


# ---------------------------------------------------------------- no_update

STILL = {"gradient_norm": 0.0, "tensors_without_gradient": 20, "tensors_changed": 0}


def all_clipped(**values):
    """A later update in which every token has moved by 0.5 to where its advantage pulls."""
    batch = healthy_batch(update=1)
    moved_BT = 0.5 * np.sign(batch.token_advantages)
    old_BT = np.where(batch.arrays["mask"], batch.arrays["old_logprobs"] - 1.0, 0.0)
    gone = dict.fromkeys(("clipped", "ratio"))
    changes = {**gone, **STILL, "old_logprobs": old_BT, "new_logprobs": old_BT + moved_BT, **values}
    return edit_batch(batch, **{"gradients": np.zeros(moved_BT.shape), **changes})


def test_a_gradient_that_clipping_took_away_is_no_disconnection():
    assert no_update.check_batch(all_clipped()).state is NOT_APPLICABLE
    assert no_update.check_batch(all_clipped(clip_low=None, clip_high=None)).state is NOT_APPLICABLE
    assert no_update.check_batch(all_clipped(objective="gspo")).state is NOT_APPLICABLE
    assert told(no_update.check_batch(all_clipped(clip_low=0.9, clip_high=5.0))) == (FINDING, PROVEN)
    assert no_update.check_batch(all_clipped(old_logprobs=None)).state is NO_DATA


def test_advantages_of_zero_ask_for_no_gradient():
    assert no_update.check_batch(healthy_batch(**STILL, advantages=np.zeros(16))).state is NOT_APPLICABLE


def test_an_update_that_changed_every_tensor_was_connected():
    assert no_update.check_batch(healthy_batch(**{**STILL, "tensors_changed": 20})).state is NOT_APPLICABLE
    assert told(no_update.check_batch(healthy_batch(**STILL, clipped=None))) == (FINDING, PROVEN)
    first = healthy_batch(**STILL, clipped=None, new_logprobs=None)  # nothing is clipped in a first update
    assert told(no_update.check_batch(first)) == (FINDING, PROVEN)


# ---------------------------------------------------------------- shift, temperature_mismatch: low temperatures


def log_softmax(logits_BTV):
    return logits_BTV - np.logaddexp.reduce(logits_BTV, axis=2, keepdims=True)


def trained_at(temperature, *, update, step_size=0.3, seed=0, vocabulary=20, **values):
    """A sound update of a made-up model: old and the sampler's before, new and the model's own after `update` steps."""
    random = np.random.default_rng(seed)
    rows, width = 16, 24
    before_BTV = 2.0 * random.standard_normal((rows, width, vocabulary))
    after_BTV = before_BTV + (step_size if update else 0.0) * random.standard_normal(before_BTV.shape)
    gumbel_BTV = random.gumbel(size=before_BTV.shape)
    tokens_BT = np.argmax(before_BTV / temperature + gumbel_BTV, axis=2)

    def logprobs(logits_BTV, heat):
        return np.take_along_axis(log_softmax(logits_BTV / heat), tokens_BT[:, :, None], axis=2)[:, :, 0]

    given = {
        "tokens": tokens_BT,
        "mask": np.ones(tokens_BT.shape),
        "old_logprobs": logprobs(before_BTV, temperature),
        "sampler_logprobs": logprobs(before_BTV, temperature),
        "new_logprobs": logprobs(after_BTV, temperature),
        "plain_logprobs": logprobs(after_BTV, temperature),
        "plain_raw_logprobs": logprobs(after_BTV, 1.0),
        "temperature": temperature,
        "dtype": "float32",
        "update": update,
        "step": 2,
    }
    return Batch.of({**given, **values})


@pytest.mark.parametrize("update", [0, 1, 3])
@pytest.mark.parametrize("temperature", [0.01, 0.05, 0.3, 0.7, 1.0])
def test_a_sound_run_at_a_low_temperature_is_not_accused(temperature, update):
    for seed in range(5):
        for step_size in (0.003, 0.3):
            batch = trained_at(temperature, update=update, step_size=step_size, seed=seed)
            found = [
                (one.ILLNESS.code, verdict.message)
                for one in (shift, temperature_mismatch, engine_mismatch)
                if (verdict := one.check_batch(batch)).state is FINDING
            ]
            assert not found


def test_a_shift_needs_tokens_that_the_policy_is_not_certain_of():
    batch = trained_at(0.7, update=0)
    moved_BT = np.roll(batch.arrays["plain_logprobs"], -1, axis=1)
    shifted = {"old_logprobs": moved_BT, "new_logprobs": moved_BT}
    assert told(shift.check_batch(edit_batch(batch, **shifted))) == (FINDING, PROVEN)
    certain = {name: 1e-3 * batch.arrays[name] for name in batch.arrays if name.endswith("_logprobs")}
    certain |= {name: 1e-3 * array_BT for name, array_BT in shifted.items()}
    assert shift.check_batch(edit_batch(batch, **certain)).state is not FINDING


def test_in_a_later_update_new_log_probs_are_held_against_the_model():
    batch = trained_at(0.7, update=1)
    shifted = edit_batch(batch, new_logprobs=np.roll(batch.arrays["new_logprobs"], -1, axis=1))
    verdict = shift.check_batch(shifted)
    assert told(verdict) == (FINDING, PROVEN)
    assert verdict.message.startswith("new log-probs are shifted")
    untempered = edit_batch(batch, new_logprobs=batch.arrays["plain_raw_logprobs"])
    verdict = temperature_mismatch.check_batch(untempered)
    assert told(verdict) == (FINDING, PROVEN)
    assert verdict.message.startswith("the trainer's new log-probs are those of temperature 1")


# ---------------------------------------------------------------- engine_mismatch


def test_in_a_later_update_the_model_does_not_say_that_the_engine_is_off():
    batch = trained_at(1.0, update=1, step_size=0.05, step=1)
    wrong_BT = batch.arrays["plain_logprobs"]  # the trainer's old are of the moved weights: computed after the update
    verdict = engine_mismatch.check_batch(edit_batch(batch, old_logprobs=wrong_BT))
    assert verdict.state is FINDING
    assert verdict.confidence is not PROVEN
    assert "the engine is off" not in verdict.message


def test_at_the_first_update_of_all_the_model_says_which_side_is_off():
    batch = trained_at(1.0, update=0, step=1)
    noise_BT = 0.2 * np.random.default_rng(5).standard_normal(batch.arrays["mask"].shape)
    sampler_BT = np.minimum(batch.arrays["sampler_logprobs"] + noise_BT, 0.0)
    verdict = engine_mismatch.check_batch(edit_batch(batch, sampler_logprobs=sampler_BT))
    assert told(verdict) == (FINDING, PROVEN)
    assert "the engine is off" in verdict.message


def unshifted(spread, **values):
    """The classic: logits[:, t] for token t. They have nothing to do with the token; a flat model hides it."""
    random = np.random.default_rng(3)
    batch = trained_at(1.0, update=0)
    own_BT = np.log(1 / 50) + spread * random.standard_normal(batch.arrays["mask"].shape)
    other_BT = np.log(1 / 50) + spread * random.standard_normal(own_BT.shape)
    own = dict.fromkeys(("plain_logprobs", "plain_raw_logprobs", "sampler_logprobs"), own_BT)
    return edit_batch(batch, **{**own, "old_logprobs": other_BT, "new_logprobs": other_BT, **values})


def test_logits_of_a_random_model_that_are_not_shifted_are_not_called_healthy():
    for dtype in ("float32", None):
        batch = unshifted(0.11, dtype=dtype)
        assert shift.check_batch(batch).state is NOT_APPLICABLE
        diagnosis = diagnose(Evidence((batch,)))
        first = diagnosis.findings[0]
        assert (first.code, first.confidence, first.severity) == ("SAMP06", PROVEN, Severity.HARMFUL)
        assert "not the model's own" in first.verdict.message
        assert "0.12 per token" in first.verdict.message


def test_log_probs_a_nat_from_the_models_own_are_fatal():
    assert engine_mismatch.check_batch(unshifted(1.2)).severity is Severity.FATAL


def test_without_the_samplers_log_probs_the_model_may_have_been_asked_too_late():
    assert told(engine_mismatch.check_batch(unshifted(0.11, sampler_logprobs=None))) == (FINDING, LIKELY)
    assert told(engine_mismatch.check_batch(unshifted(0.05, sampler_logprobs=None))) == (FINDING, POSSIBLE)
    batch = unshifted(0.11, sampler_logprobs=None)
    again = edit_batch(batch, scored_again=batch.arrays["new_logprobs"])  # the same weights, by the trainer's own way
    assert told(engine_mismatch.check_batch(again)) == (FINDING, PROVEN)


def test_kernels_of_another_shape_are_not_proven_to_be_another_model():
    batch = trained_at(1.0, update=0)
    noise_BT = 0.003 * np.random.default_rng(5).standard_normal(batch.arrays["mask"].shape)
    new_BT = np.minimum(batch.arrays["new_logprobs"] + noise_BT, 0.0)
    assert told(engine_mismatch.check_batch(edit_batch(batch, new_logprobs=new_BT))) == (FINDING, LIKELY)


def test_a_model_that_is_the_one_that_sampled_says_nothing_of_a_later_update():
    batch = trained_at(1.0, update=1)
    before = edit_batch(batch, plain_logprobs=batch.arrays["old_logprobs"])
    assert engine_mismatch.not_the_models_own(before) is None
    assert shift.check_batch(before).state is HEALTHY


# ---------------------------------------------------------------- ratio_stuck_at_one


def stuck(**changes):
    return edit_batch(healthy_batch(), **{"update": 1, "policy_version": None, "update_norm": None, **changes})


def test_at_a_learning_rate_of_zero_the_ratio_stays_one_by_right():
    assert ratio_stuck_at_one.check_batch(stuck(learning_rate=0.0)).state is NOT_APPLICABLE
    assert ratio_stuck_at_one.check_batch(stuck(learning_rate=0.0, update_norm=0.01)).state is NOT_APPLICABLE


def test_a_rate_and_a_gradient_make_a_stuck_ratio_likely():
    assert told(ratio_stuck_at_one.check_batch(stuck())) == (FINDING, LIKELY)
    assert told(ratio_stuck_at_one.check_batch(stuck(gradients=None))) == (FINDING, LIKELY)
    assert told(ratio_stuck_at_one.check_batch(stuck(gradient_norm=None))) == (FINDING, LIKELY)
    for lost in ({"learning_rate": None}, {"gradient_norm": None, "gradients": None}):
        verdict = ratio_stuck_at_one.check_batch(stuck(**lost))
        assert verdict.state is NO_DATA
        assert verdict.message.startswith("update_norm")


def test_the_second_update_of_a_run_may_follow_one_at_rate_zero():
    assert told(ratio_stuck_at_one.check_batch(stuck(update_norm=0.01))) == (FINDING, PROVEN)
    assert told(ratio_stuck_at_one.check_batch(stuck(update_norm=0.01, step=1))) == (FINDING, LIKELY)

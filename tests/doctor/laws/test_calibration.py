"""Sampled tokens against the whole distribution that scores them: the way they were drawn is named."""

import math
from dataclasses import replace

import numpy as np
import pytest

from assay.calibration import GAINS, TABLES, VARIANTS, Distributions, Tally
from assay.doctor.facts.calibration import calibration_of
from assay.doctor.facts.ends import ends_at_the_limit
from assay.doctor.laws.sampling import NATS, check_batch, check_batches
from assay.record.batch import Batch
from assay.verdict import Confidence, State

END, IDS, LIMIT = 0, 14, 8


def distribution(weights):
    return weights / weights.sum()


def without(p, ids):
    return distribution(np.where(np.isin(np.arange(len(p)), ids), 0.0, p))


def likeliest(p, count):
    return distribution(np.where(p >= np.sort(p)[-count], p, 0.0))


def nucleus(p, share):
    order = np.argsort(-p)
    return without(p, order[(p[order].cumsum() < share).sum() + 1 :])


def answers(draw, rows, seed, tries=1, step=1, limit=LIMIT):
    """A batch of answers of a Markov chain; draw(p, place, answer) is what each token is drawn from."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.standard_normal((IDS + 1, IDS))
    p_of = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    tally, lengths = Tally(), []
    for _ in range(rows):
        for _ in range(tries):
            answer = []
            while len(answer) < limit and END not in answer:
                p = p_of[answer[-1] if answer else IDS]
                answer.append(int(random.choice(IDS, p=draw(p, len(answer), answer))))
            if END in answer:
                break
        scored = np.log(p_of[[IDS, *answer[:-1]]])
        tally.add(Distributions.of(scored, answer))
        lengths.append(len(answer))
    values = {**tally.fields(), "step": step, "update": 0, "eos_ids": [END]}
    return Batch.of({**values, "tokens": np.zeros((rows, limit), dtype=int), "lengths": lengths})


def named(draw, **how):
    verdict = check_batches([answers(draw, rows=200, seed=seed, step=seed, **how) for seed in (1, 2)])
    return verdict.message if verdict.state is State.FINDING else ""


def test_the_sums_are_those_worked_out_by_hand():
    """Two tokens: the first drawn with 1/2 of (1/2, 1/4, 1/4), the second with 1/4 of the same."""
    tally = Tally()
    tally.add(Distributions.of(np.log([[0.5, 0.25, 0.25]] * 2), [0, 1]))
    fields = tally.fields()
    counts, expected, variance, absent = (fields[name][:2] for name in TABLES)
    assert counts.tolist() == [[1, 0, 0], [0, 1, 0]]
    np.testing.assert_allclose(expected, [[0.5, 0.25, 0.25]] * 2)
    np.testing.assert_allclose(variance, [[0.25, 0.1875, 0.1875]] * 2)
    np.testing.assert_allclose(absent, [[math.log(2), *[math.log(4 / 3)] * 2]] * 2)
    gain = {(variant.kind, variant.amount): fields["variant_gains"][at] for at, variant in enumerate(VARIANTS)}
    impossible = {variant.kind: fields["variant_impossible"][at] for at, variant in enumerate(VARIANTS)}
    # at half the temperature the squares 1/4, 1/16, 1/16 add up to 3/8: 2/3 and 1/6 in place of 1/2 and 1/4
    assert gain["heat", 0.5] == pytest.approx(math.log(2 / 3 / 0.5) + math.log(1 / 6 / 0.25))
    assert gain["uniform", 0.3] == pytest.approx(math.log((0.35 + 0.1) / 0.5) + math.log((0.175 + 0.1) / 0.25))
    assert impossible["greedy"] == 1
    # the second token has one seen id of probability 1/2 before it, which it is not
    assert gain["presence", 1.0] == pytest.approx(-math.log(0.5 + 0.5 * math.exp(-1)))


def test_the_likelihood_of_a_variant_adds_up_to_one():
    """Over all tokens that could be drawn, the sum of p exp(gain) is 1 where the variant is a distribution."""
    p = distribution(np.random.default_rng(0).random(40) ** 6)
    sums = np.zeros(len(VARIANTS))
    for token in range(len(p)):
        tally = Tally()
        tally.add(Distributions.of(np.log(p)[None], [token]))
        gains, impossible = (tally.fields()[name] for name in GAINS)
        sums += np.where(impossible > 0, 0.0, p[token] * np.exp(gains))
    np.testing.assert_allclose(sums, 1.0, atol=1e-9)


@pytest.mark.parametrize("seed", range(25))
def test_sound_draws_are_not_explained_otherwise(seed):
    batches = [answers(lambda p, *_: p, rows=60, seed=3 * seed + step, step=step) for step in range(3)]
    calibration = calibration_of(batches, [END])
    assert calibration.explanations()[0].evidence < NATS / 2


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (
            lambda p, place, _: without(p, [END]) if place < 3 else p,
            "0 (the end) was never drawn among the first 3 tok",
        ),
        (lambda p, place, _: without(p, [5, 7]), "tokens 5, 7 were never drawn, where"),
        (lambda p, *_: distribution(p ** (1 / 0.7)), "another temperature, 0.7 times"),
        (lambda p, *_: distribution(p ** (1 / 1.35)), "another temperature, 1.35 times"),
        (lambda p, *_: likeliest(p, 1), "greedily: the likeliest token always"),
        (lambda p, *_: likeliest(p, 4), "among the 4 likeliest tokens"),
        (lambda p, *_: nucleus(p, 0.8), "the likeliest 80 % of the distribution"),
        (lambda p, *_: distribution(np.where(p >= 0.1 * p.max(), p, 0.0)), "at least 10 % of the likeliest one's"),
        (lambda p, *_: 0.8 * p + 0.2 / IDS, "at random in about 20 %"),
        (lambda p, *_: 0.7 * likeliest(p, 1) + 0.3 / IDS, "greedily, and at random in about 30 %"),
        (
            lambda p, _, answer: distribution(p * np.exp(-1.0 * np.isin(np.arange(IDS), answer))),
            "penalty on tokens that the answer has already, of about 1",
        ),
    ],
)
def test_the_way_of_drawing_is_named(draw, words):
    assert words in named(draw)


def test_answers_that_are_drawn_again_until_they_end_are_named():
    assert "most towards the limit: answers that do not end are drawn again" in named(lambda p, *_: p, tries=12)


def test_an_end_that_is_always_favoured_is_not_called_a_rejection_alone():
    said = named(lambda p, *_: distribution(np.where(np.arange(IDS) == END, 3 * p, p)))
    assert "0 (the end) was drawn too often" in said
    assert "it is favoured, or answers that do not end are drawn again" in said


def test_the_name_of_a_way_of_drawing_is_likely_and_never_proven():
    banned = answers(lambda p, *_: without(p, [5, 7]), rows=300, seed=1)
    asked = replace(banned, arrays={**banned.arrays, "prompt_tokens": np.zeros((300, 1), dtype=int)})
    assert check_batch(asked).confidence is Confidence.LIKELY


def test_actions_of_a_policy_must_be_known_to_be_of_its_weights():
    banned = answers(lambda p, *_: without(p, [5, 7]), rows=300, seed=1)
    assert check_batch(banned).confidence is Confidence.POSSIBLE


def test_tokens_of_later_updates_are_not_counted():
    batch = answers(lambda p, *_: likeliest(p, 1), rows=100, seed=1)
    later = Batch(batch.arrays, {**batch.numbers, "update": 1}, batch.settings, batch.texts, batch.source)
    with pytest.raises(Exception, match="first update"):
        check_batch(later)


def test_rows_chosen_by_their_rewards_are_not_held_against_the_law():
    batch = answers(lambda p, *_: likeliest(p, 2), rows=100, seed=1)
    settings = {**batch.settings, "zero_variance": "drop"}
    with pytest.raises(Exception, match="plain_entropy"):
        check_batch(Batch(batch.arrays, batch.numbers, settings, batch.texts, batch.source))


def limit_batch(ended, cut_off, probability):
    """Rows that reach a limit of 3 tokens; those that end do so with this probability."""
    rows = ended + cut_off
    tokens_BT, logprobs_BT = np.full((rows, 3), 5), np.full((rows, 3), -1.0)
    tokens_BT[:ended, 2], logprobs_BT[:ended, 2] = END, math.log(probability)
    return Batch.of(
        {
            "tokens": tokens_BT,
            "mask": np.ones((rows, 3), dtype=bool),
            "old_logprobs": logprobs_BT,
            "lengths": np.full(rows, 3),
            "finished": np.arange(rows) < ended,
            "eos_ids": [END],
            "max_tokens": 3,
            "step": 1,
        }
    )


def test_each_answer_that_ends_at_the_limit_stands_for_some_that_do_not():
    """60 that end with probability 3/5 stand for 40 others; 40 are cut off, or none."""
    assert ends_at_the_limit(limit_batch(60, 40, 0.6)).evidence == pytest.approx(0.0, abs=1e-9)
    none = ends_at_the_limit(limit_batch(60, 0, 0.6))
    assert none.expected == pytest.approx(40)
    # variance 60 * (0.4 / 0.6) / 0.6 = 66.7; the largest weight counts as 1: 40^2 / 2 / (66.7 + 40 / 3) = 10
    assert none.evidence == pytest.approx(10.0)


def test_a_limit_that_cuts_nobody_off_is_named_where_ends_say_otherwise():
    assert check_batches([limit_batch(200, 0, 0.6)]).message.startswith("answers that reach the token limit end there")


def test_a_uniform_policy_does_not_look_greedy():
    tally = Tally()
    tally.add(Distributions.of(np.full((30, 3), -math.log(3)), [0, 1, 2] * 10))
    gains = dict(zip(VARIANTS, tally.fields()["variant_gains"], strict=True))
    greedy = [gain for variant, gain in gains.items() if variant.kind == "epsilon_greedy"]
    assert greedy == pytest.approx([0.0] * len(greedy), abs=1e-9)  # any of three ids that are as likely: the same draw

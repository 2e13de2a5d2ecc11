"""Repeated rows: how sure the doctor may be, by what is known of the distribution that was sampled from."""

import math

import numpy as np
import pytest

from assay.doctor.evidence import Batch
from assay.doctor.illnesses.sampling import fixed_seed, no_diversity
from assay.verdict import Confidence, State

PROVEN, LIKELY, POSSIBLE = Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE
EQUAL = [5] * 4 + [6] * 4  # by row: two groups of four, each of one completion
HALVES = [5, 6, 5, 6, 7, 8, 7, 8]  # the second half of each group is the first again


def two_groups(rows, logprob, **values):
    """Eight completions of three tokens, each named by its token; `logprob` is that of a whole completion."""
    tokens_BT = np.repeat(np.array(rows)[:, None], 3, axis=1)
    given = {"tokens": tokens_BT, "lengths": [3] * 8, "group_ids": [0] * 4 + [1] * 4, "step": 3, "update": 0}
    given |= {"mask": np.ones((8, 3), dtype=bool), "old_logprobs": np.full((8, 3), logprob / 3)}
    return Batch.of({**given, **values})


@pytest.mark.parametrize(
    ("settings", "confidence"),
    [
        ({"temperature": 1.0}, PROVEN),
        ({"temperature": 1.2}, PROVEN),  # flatter than any log-prob says: equal rows are rarer still
        ({}, LIKELY),  # nothing says how sharp sampling was
        ({"temperature": 0.3}, POSSIBLE),  # log-probs of temperature 1 would make a common answer look rare
        ({"temperature": 1.0, "top_p": 0.5}, POSSIBLE),
        ({"temperature": 1.0, "top_k": 5}, POSSIBLE),
        ({"temperature": 1.0, "min_p": 0.2}, POSSIBLE),
        ({"temperature": 1.0, "top_k": 5, "support_kept": True}, PROVEN),
        ({"temperature": 0.3, "top_k": 1}, PROVEN),  # one token to choose from: no chance is needed
    ],
)
def test_equal_rows_are_proven_only_by_log_probs_of_what_was_sampled(settings, confidence):
    verdict = no_diversity.check_batch(two_groups(EQUAL, math.log(0.01), **settings))
    assert (verdict.state, verdict.confidence) == (State.FINDING, confidence)


def test_the_model_asked_plainly_knows_the_temperature():
    plain_BT = np.full((8, 3), math.log(0.01) / 3)
    for check, rows in ((no_diversity.check_batch, EQUAL), (fixed_seed.check_batch, HALVES)):
        verdict = check(two_groups(rows, math.log(0.01), temperature=0.3, plain_logprobs=2 * plain_BT))
        assert (verdict.state, verdict.confidence) == (State.FINDING, PROVEN)


@pytest.mark.parametrize(
    ("settings", "confidence"), [({"temperature": 1.0}, PROVEN), ({"temperature": 0.3}, POSSIBLE), ({}, LIKELY)]
)
def test_a_pattern_of_copies_is_as_sure_as_its_log_probs(settings, confidence):
    verdict = fixed_seed.check_batch(two_groups(HALVES, math.log(1e-3), **settings))
    assert (verdict.state, verdict.confidence) == (State.FINDING, confidence)


@pytest.mark.parametrize(("temperature", "confidence"), [(1.0, LIKELY), (0.3, POSSIBLE)])
def test_rare_repeats_without_a_pattern_are_never_proven(temperature, confidence):
    rows = [5, 6, 7, 9, 7, 5, 6, 8]  # 7, 5 and 6 come again in the other group
    verdict = fixed_seed.check_batch(two_groups(rows, math.log(1e-9), temperature=temperature))
    assert (verdict.state, verdict.confidence) == (State.FINDING, confidence)


def test_the_chance_of_equal_rows_has_both_sides():
    # two groups of four: six rows agree, 0.76 of the stakes win; 0.0312^6 / 0.76 = 1.2e-9, 0.0298^6 / 0.76 = 0.9e-9
    assert no_diversity.check_batch(two_groups(EQUAL, math.log(0.0312), temperature=1.0)).state is State.HEALTHY
    assert no_diversity.check_batch(two_groups(EQUAL, math.log(0.0298), temperature=1.0)).state is State.FINDING
    # copies in both halves: four copies; 0.0057^4 = 1.06e-9, 0.0055^4 = 0.92e-9
    assert fixed_seed.check_batch(two_groups(HALVES, math.log(0.0057), temperature=1.0)).state is State.HEALTHY
    assert fixed_seed.check_batch(two_groups(HALVES, math.log(0.0055), temperature=1.0)).state is State.FINDING

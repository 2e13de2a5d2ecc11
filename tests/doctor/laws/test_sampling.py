"""The law of sampling: draws from a distribution obey it, whatever the distribution; others do not."""

import numpy as np
import pytest

from assay.doctor.examples import edit_batch
from assay.doctor.laws.sampling import check_batch
from assay.record.batch import Batch
from assay.verdict import Missing, State

ROWS, TOKENS, VOCABULARY = 24, 20, 16


def softmax(logits_BTV):
    powers_BTV = np.exp(logits_BTV - logits_BTV.max(-1, keepdims=True))
    return powers_BTV / powers_BTV.sum(-1, keepdims=True)


def batch_of_draws(change, seed=0, spread=1.5):
    """Tokens drawn from change(p), scored under p."""
    random = np.random.default_rng(seed)
    p_BTV = softmax(spread * random.standard_normal((ROWS, TOKENS, VOCABULARY)))
    drawn_BTV = change(p_BTV)
    cumulated_BTV = (drawn_BTV / drawn_BTV.sum(-1, keepdims=True)).cumsum(-1)
    tokens_BT = (random.random((ROWS, TOKENS, 1)) > cumulated_BTV[..., :-1]).sum(-1)
    logprobs_BT = np.log(np.take_along_axis(p_BTV, tokens_BT[..., None], -1)[..., 0])
    entropy_BT = -(p_BTV * np.log(p_BTV)).sum(-1)
    variance_BT = (p_BTV * np.log(p_BTV) ** 2).sum(-1) - entropy_BT**2
    return Batch.of(
        {
            "tokens": tokens_BT,
            "mask": np.ones((ROWS, TOKENS), dtype=bool),
            "lengths": np.full(ROWS, TOKENS),
            "sampler_versions": np.full(ROWS, 7),
            "plain_logprobs": logprobs_BT,
            "plain_entropy": entropy_BT,
            "plain_variance": variance_BT,
            "policy_version": 7,
            "update": 0,
        }
    )


def nucleus(p_BTV, share=0.5):
    order_BTV = np.sort(p_BTV, -1)[..., ::-1]
    before_BTV = order_BTV.cumsum(-1) - order_BTV
    least_BT1 = np.where(before_BTV < share, order_BTV, np.inf).min(-1, keepdims=True)
    return np.where(p_BTV >= least_BT1, p_BTV, 0.0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.5, 1.5, 4.0])
def test_draws_from_the_distribution_obey_the_law(seed, spread):
    assert check_batch(batch_of_draws(lambda p_BTV: p_BTV, seed, spread)).state is State.HEALTHY


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (nucleus, "likelier"),
        (lambda p_BTV: p_BTV**2, "likelier"),
        (lambda p_BTV: p_BTV**0.5, "rarer"),
        (lambda p_BTV: p_BTV[::-1], "rarer"),
        (lambda p_BTV: (p_BTV == p_BTV.max(-1, keepdims=True)).astype(float), "likelier"),
    ],
    ids=["top-p", "a lower temperature", "a higher temperature", "the prompts of other rows", "greedy"],
)
def test_another_sampler_breaks_it(change, words):
    verdict = check_batch(batch_of_draws(change))
    assert verdict.state is State.FINDING
    assert words in verdict.message


def test_weights_that_moved_or_versions_that_differ_are_not_judged():
    batch = batch_of_draws(nucleus)
    for moved in (edit_batch(batch, update=1), edit_batch(batch, sampler_versions=np.full(ROWS, 6))):
        with pytest.raises(Missing):
            check_batch(moved)

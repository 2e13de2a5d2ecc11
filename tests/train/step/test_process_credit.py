"""Process rewards: one number a step becomes one advantage a token, as DeepSeekMath's section 4.1.3 has it."""

import math

import pytest
import torch
from fixtures.tiny import prompt, tiny_policy

from assay.config import AdvantageConfig, load
from assay.policy.causal_packing import CausalPacking
from assay.train.failure import RunFailed
from assay.train.step.choose import has_signal
from assay.train.step.credit import credit
from assay.train.step.pack import pack_rows
from assay.types import Group, Rollout, Score, StopReason


def rollout(tokens, stop=StopReason.EOS):
    return Rollout("p0", (3,) * (tokens - 1) + (1,), (-1.0,) * tokens, stop, 0, "")


def scored(*steps, outcome=0.0):
    """A score of process rewards, (tokens up to the step's end, reward) each, and of an outcome beside them."""
    components = {"process": sum(reward for _, reward in steps), "outcome": outcome}
    return Score.of(components, {}, tuple(steps))


def group(lengths, *scores):
    return Group(prompt(0, (5,)), tuple(map(rollout, lengths)), tuple(scores))


def advantages(one, mask_truncated=False, **settings):
    settings = AdvantageConfig(**{"epsilon": 0.0, **settings})
    return [sample.advantage for sample in credit([one], settings, {}, mask_truncated=mask_truncated)]


# two rollouts of 4 and 6 tokens, of 2 and 3 steps; rewards 1 0 and 1 1 0.5: mean 0.7, sample std 0.447214
TWO_AND_THREE = group((4, 6), scored((2, 1.0), (4, 0.0)), scored((1, 1.0), (3, 1.0), (6, 0.5)))
STD = math.sqrt((0.3**2 * 3 + 0.7**2 + 0.2**2) / 4)
GOOD, BAD, HALF = 0.3 / STD, -0.7 / STD, -0.2 / STD


def test_a_token_gets_the_z_scores_of_the_steps_that_end_at_it_or_later():
    first, second = advantages(TWO_AND_THREE)
    assert pytest.approx(0.4472136) == STD
    assert first == pytest.approx([GOOD + BAD, GOOD + BAD, BAD, BAD])
    later = [GOOD + HALF, GOOD + HALF, HALF, HALF, HALF]
    assert second == pytest.approx([2 * GOOD + HALF, *later])


def test_without_the_std_they_are_sums_of_differences_and_by_the_population_std_they_are_larger():
    first, second = advantages(TWO_AND_THREE, std="none")
    assert first == pytest.approx([-0.4, -0.4, -0.7, -0.7])
    assert second == pytest.approx([0.4, 0.1, 0.1, -0.2, -0.2, -0.2])
    wider = advantages(TWO_AND_THREE, std="population")[0]
    assert wider == pytest.approx([math.sqrt(5 / 4) * one for one in advantages(TWO_AND_THREE)[0]])


def test_epsilon_is_added_to_the_std():
    assert advantages(TWO_AND_THREE, epsilon=1.0)[0][3] == pytest.approx(-0.7 / (STD + 1.0))


def test_an_outcome_beside_the_steps_is_credited_to_every_token():
    # the same steps, and outcomes 2 and 0: their z-scores are +-1 / sqrt 2
    left, right = (score.steps for score in TWO_AND_THREE.scores)
    mixed = group((4, 6), scored(*left, outcome=2.0), scored(*right, outcome=0.0))
    outcome = math.sqrt(0.5)
    first, second = advantages(mixed)
    assert first == pytest.approx([one + outcome for one in advantages(TWO_AND_THREE)[0]])
    assert second == pytest.approx([one - outcome for one in advantages(TWO_AND_THREE)[1]])


def test_equal_outcomes_beside_unequal_steps_add_nothing():
    same = group((4, 6), *(scored(*score.steps, outcome=0.1) for score in TWO_AND_THREE.scores))
    for mine, theirs in zip(advantages(same), advantages(TWO_AND_THREE), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-12)


def test_equal_steps_and_outcomes_give_exactly_0_even_where_their_sums_are_rounded():
    steps = ((1, 0.1), (2, 0.1), (4, 0.1))
    cut = [steps[:number] for number in (1, 2, 3)]
    assert len({sum(reward for _, reward in one) + 0.1 - sum(reward for _, reward in one) for one in cut}) > 1
    flat = group((4, 4, 4), *(scored(*one, outcome=0.1) for one in cut))
    assert advantages(flat) == [(0.0,) * 4] * 3
    # a weight on the process reward: 0.3 times the sum of the steps is not the sum of 0.3 times each
    weighted = [tuple((end, 0.3 * reward) for end, reward in one) for one in cut]
    scores = [
        Score.of({"process": sum(reward for _, reward in one)}, {"process": 0.3}, heavy)
        for one, heavy in zip(cut, weighted, strict=True)
    ]
    assert len({score.reward - sum(reward for _, reward in score.steps) for score in scores}) > 1
    assert advantages(group((4, 4, 4), *scores)) == [(0.0,) * 4] * 3


def test_a_large_reward_keeps_its_outcome():
    far = group((2, 2), *(scored((2, 1e9), outcome=value) for value in (1.0, 0.0)))
    assert advantages(far, std="none") == [(0.5, 0.5), (-0.5, -0.5)]


def test_an_unscored_rollout_gets_nothing_and_does_not_count():
    with_failure = group((4, 5, 6), TWO_AND_THREE.scores[0], Score.failed("raised"), TWO_AND_THREE.scores[1])
    first, unscored, second = advantages(with_failure)
    assert unscored == (0.0,) * 5
    expected = advantages(TWO_AND_THREE)
    assert first == pytest.approx(expected[0])
    assert second == pytest.approx(expected[1])


def test_a_rollout_without_steps_beside_one_with_steps_gets_its_outcome():
    one = group((2, 3), scored((1, 1.0), (2, 0.0)), scored(outcome=1.0))
    first, second = advantages(one, std="none")
    assert first == pytest.approx([-0.5 + 0.0, -0.5 - 0.5])
    assert second == pytest.approx([0.5] * 3)


def test_groups_with_and_without_steps_go_side_by_side():
    plain = Group(prompt(0, (5,)), (rollout(2), rollout(3)), (Score.of({"exact": 1.0}), Score.of({"exact": 0.0})))
    samples = credit([plain, TWO_AND_THREE], AdvantageConfig(std="none"), {}, mask_truncated=False)
    assert [sample.advantage for sample in samples[:2]] == [0.5, -0.5]
    assert samples[2].advantage == pytest.approx([-0.4, -0.4, -0.7, -0.7])


@pytest.mark.parametrize("settings", [{"combine": "gdpo"}, {"scale": "batch"}])
def test_gdpo_and_the_std_of_the_batch_know_no_steps(settings):
    with pytest.raises(RunFailed, match=r"set advantage.combine = 'sum' and advantage.scale = 'group'"):
        advantages(TWO_AND_THREE, **settings)


def test_each_token_carries_its_own_advantage_into_the_batch():
    samples = credit([TWO_AND_THREE], AdvantageConfig(std="none"), {}, mask_truncated=False)
    device = tiny_policy().device
    (minibatch,) = pack_rows(samples, [1, 0], CausalPacking(device), minibatches=1, microbatches=1, max_tokens=8)
    (batch,) = minibatch.microbatches
    expected = torch.tensor([[0.4, 0.1, 0.1, -0.2, -0.2, -0.2], [-0.4, -0.4, -0.7, -0.7, 0.0, 0.0]])
    torch.testing.assert_close(batch.advantages_BT, expected)


def test_a_group_whose_steps_differ_has_a_signal_even_if_their_sums_do_not():
    crossed = group((4, 4), scored((2, 1.0), (4, 0.0)), scored((2, 0.0), (4, 1.0)))
    assert has_signal(crossed, load(None))
    assert any(any(one) for one in advantages(crossed))
    flat = group((4, 4), scored((2, 1.0), (4, 1.0)), scored((2, 1.0), (4, 1.0)))
    assert not has_signal(flat, load(None))
    assert advantages(flat) == [(0.0,) * 4] * 2
    longer = group((4, 4), scored((2, 1.0), (4, 1.0)), scored((4, 1.0)))  # one more step of the same worth
    assert not has_signal(longer, load(None))
    assert advantages(longer) == [(0.0,) * 4] * 2

import pytest
import torch
from fixtures.tiny import prompt, tiny_policy

from assay.config import LossConfig, OptimizerConfig, load
from assay.train.step.failed_rewards import FailedRewards, RewardFailed
from assay.train.step.learner import Learner
from assay.train.step.score import score
from assay.types import Rollout, Score, StopReason

PROMPTS = [prompt(0, (5, 6)), prompt(1, (7,))]


def rollout(number, tokens, text, stop=StopReason.EOS):
    return Rollout(f"p{number}", tokens, (-1.0,) * len(tokens), stop, 0, text)


ROLLOUTS = [
    [rollout(0, (2, 3, 4, 1), "a"), rollout(0, (2, 1), "b")],
    [rollout(1, (8,) * 8, "c", StopReason.LENGTH), rollout(1, (1,), "")],
]


class Scripted:
    """A reward that answers from a list."""

    def __init__(self, scores):
        self.scores = scores

    def score(self, asked, on_score):
        assert len(asked) == len(self.scores)
        for index, one in enumerate(self.scores):
            on_score(index, one)
        return self.scores


def scored(scores, *overrides, learner=None):
    seen = []
    size = ["rollout.max_tokens=8", "rollout.penalty_tokens=4", "rollout.group_size=2"]
    config = load(None, [*size, *overrides])
    groups = score(
        PROMPTS,
        ROLLOUTS,
        config=config,
        reward=Scripted(scores),
        learner=learner or Learner(tiny_policy(), None, LossConfig(), OptimizerConfig(), 1),
        failures=FailedRewards(config),
        on_scored=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    return groups


def exact(*rewards):
    return [Score.of({"exact": reward}) for reward in rewards]


def test_scores_go_to_their_own_rollouts():
    groups = scored(exact(1.0, 2.0, 3.0, 4.0))
    assert [group.rewards for group in groups] == [(1.0, 2.0), (3.0, 4.0)]
    assert [[one.text for one in group.rollouts] for group in groups] == [["a", "b"], ["c", ""]]


def test_long_answers_pay_by_length():
    groups = scored(exact(1.0, 1.0, 1.0, 1.0), "rollout.truncated=penalise")
    # lengths 4, 2, 8, 1 with a limit of 8 and a penalty over the last 4
    assert [group.rewards for group in groups] == [(1.0, 1.0), (0.0, 1.0)]
    assert dict(groups[1].scores[0].components) == {"exact": 1.0, "overlong": -1.0}


def test_kl_in_the_reward_is_a_component_of_its_own():
    config = ("loss.kl_coef=0.5", "loss.kl_placement=reward", "loss.kl_estimator=k1")
    settings = LossConfig(kl_coef=0.5, kl_placement="reward", kl_estimator="k1")
    policy, reference = tiny_policy(), tiny_policy(seed=1).frozen_copy()
    groups = scored(
        exact(0.0, 0.0, 0.0, 0.0), *config, learner=Learner(policy, reference, settings, OptimizerConfig(), 1)
    )
    one = groups[0].scores[0]
    ids = torch.tensor([[5, 6, 2, 3, 4, 1]])
    with torch.no_grad():
        difference = policy.logits(ids).log_softmax(2) - reference.logits(ids).log_softmax(2)
    expected = sum(float(difference[0, 1 + t, token]) for t, token in enumerate((2, 3, 4, 1)))
    assert one.components["reference_kl"] == pytest.approx(expected, abs=1e-4)
    assert one.reward == pytest.approx(-0.5 * expected, abs=1e-4)
    identical = scored(
        exact(1.0, 0.0, 0.5, 0.5),
        *config,
        learner=Learner(policy, policy.frozen_copy(), settings, OptimizerConfig(), 1),
    )
    assert [group.rewards for group in identical] == [(1.0, 0.0), (0.5, 0.5)]


def test_a_failed_score_stays_a_failure_whatever_is_added():
    failed = [Score.failed("raised"), *exact(1.0, 1.0, 1.0)]
    groups = scored(failed, "rollout.truncated=penalise")
    assert groups[0].scores[0] == Score.failed("raised")


def test_a_component_of_the_trainers_own_name_is_refused():
    with pytest.raises(RewardFailed, match="component 'overlong', which the trainer adds itself"):
        scored([Score.of({"overlong": 1.0})] * 4, "rollout.truncated=penalise")

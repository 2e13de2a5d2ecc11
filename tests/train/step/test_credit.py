from fixtures.tiny import prompt

from assay.config import AdvantageConfig
from assay.train.step.credit import credit
from assay.types import Group, Rollout, Score, StopReason


def group(number, *scores, stops=None):
    stops = stops or [StopReason.EOS] * len(scores)
    rollouts = tuple(Rollout(f"p{number}", (2, 1), (-1.0, -1.0), stop, 0, "") for stop in stops)
    made = tuple(Score.failed("raised") if one is None else Score.of(one) for one in scores)
    return Group(prompt(number, (5,)), rollouts, made)


def rewards(number, *values, **rest):
    return group(number, *({"exact": value} for value in values), **rest)


def advantages(groups, settings, weights=None):
    return [sample.advantage for sample in credit(groups, settings, weights or {}, mask_truncated=False)]


def test_each_group_is_compared_with_itself_alone():
    groups = [rewards(0, 1.0, 0.0, 0.0, 1.0), rewards(1, 10.0, 10.0, 10.0, 14.0)]
    assert advantages(groups, AdvantageConfig(std="none")) == [0.5, -0.5, -0.5, 0.5, -1.0, -1.0, -1.0, 3.0]


def test_samples_keep_prompt_and_order():
    groups = [rewards(0, 1.0, 0.0), rewards(1, 0.0, 1.0)]
    samples = credit(groups, AdvantageConfig(), {}, mask_truncated=False)
    assert [sample.prompt.id for sample in samples] == ["p0", "p0", "p1", "p1"]
    assert [sample.rollout for sample in samples] == [rollout for one in groups for rollout in one.rollouts]


def test_an_unscored_rollout_leaves_the_baseline_and_gets_nothing():
    unscored = group(0, {"exact": 1.0}, None, {"exact": 0.0}, {"exact": 0.5})
    assert advantages([unscored], AdvantageConfig(std="none")) == [0.5, 0.0, -0.5, 0.0]


def test_gdpo_normalises_each_component_before_it_is_weighed():
    # a large component does not drown a small one: both z-scores are +-1 within the group, exactly, on every machine
    groups = [group(0, {"big": 100.0, "small": 0.0}, {"big": 0.0, "small": 1.0})]
    settings = AdvantageConfig(combine="gdpo", std="population", epsilon=0.0)
    assert advantages(groups, settings) == [0.0, 0.0]
    assert advantages(groups, settings, {"small": 2.0}) == [-1.0, 1.0]


def test_truncated_rollouts_are_masked_only_if_asked_for():
    stops = [StopReason.EOS, StopReason.LENGTH]
    groups = [rewards(0, 1.0, 0.0, stops=stops)]
    assert [s.in_loss for s in credit(groups, AdvantageConfig(), {}, mask_truncated=True)] == [True, False]
    assert [s.in_loss for s in credit(groups, AdvantageConfig(), {}, mask_truncated=False)] == [True, True]
    # masked or not, it stays in the baseline
    assert advantages(groups, AdvantageConfig(std="none")) == [0.5, -0.5]


def test_no_groups_give_no_samples():
    assert credit([], AdvantageConfig(), {}, mask_truncated=False) == ()

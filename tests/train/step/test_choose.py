from dataclasses import replace

import pytest
from fixtures.tiny import prompt

from assay.config import load
from assay.train.failure import RunFailed
from assay.train.progress import CollectedGroups
from assay.train.step.choose import choose, has_signal
from assay.types import Group, Rollout, Score, StopReason


def group(number, *rewards):
    rollouts = tuple(Rollout(f"p{number}", (1,), (-1.0,), StopReason.EOS, 0, "") for _ in rewards)
    scores = tuple(Score.failed("raised") if reward is None else Score.of({"exact": reward}) for reward in rewards)
    return Group(prompt(number, (5,)), rollouts, scores)


ALIVE, SOLVED, HOPELESS = group(0, 1.0, 0.0, 1.0, 0.0), group(1, 1.0, 1.0, 1.0, 1.0), group(2, 0.0, 0.0, 0.0, 0.0)
HALF_SCORED, THREE_QUARTERS = group(3, 1.0, 0.0, None, None), group(4, 1.0, 0.0, 1.0, None)


def chosen(groups, policy, collected=None, **settings):
    said = []
    overrides = [f"rollout.zero_variance={policy}", "rollout.prompts=4", "rollout.group_size=4"]
    overrides += [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    return choose(collected or CollectedGroups(), groups, load(None, overrides), said.append), said


def test_keep_takes_all_groups_and_counts_those_without_signal():
    result, _ = chosen([ALIVE, SOLVED, HOPELESS], "keep")
    assert result == CollectedGroups(
        (ALIVE, SOLVED, HOPELESS), (), prompts_drawn=3, rounds=1, without_signal=2, complete=True
    )


def test_skip_leaves_them_out_and_goes_on_with_fewer():
    result, _ = chosen([ALIVE, SOLVED, HOPELESS], "skip")
    assert result == CollectedGroups(
        (ALIVE,), (SOLVED, HOPELESS), prompts_drawn=3, rounds=1, without_signal=2, complete=True
    )
    assert chosen([SOLVED], "skip")[0].groups == ()


def test_refill_asks_again_until_there_are_enough_and_takes_no_more():
    more = [group(number, 1.0, 0.0, 0.0, 0.0) for number in range(10, 14)]
    first, _ = chosen([ALIVE, SOLVED, more[0], HOPELESS], "refill")
    assert first == CollectedGroups(
        (ALIVE, more[0]), (SOLVED, HOPELESS), prompts_drawn=4, rounds=1, without_signal=2, complete=False
    )
    second, _ = chosen([*more[1:], SOLVED], "refill", first)
    assert second.groups == (ALIVE, *more[:3])
    assert second.left_out == (SOLVED, HOPELESS, more[3], SOLVED)
    assert (second.prompts_drawn, second.rounds, second.without_signal, second.complete) == (8, 2, 3, True)


def test_refill_ends_the_run_at_its_limit_and_says_what_it_saw():
    almost = CollectedGroups((ALIVE,), prompts_drawn=8, rounds=2, without_signal=7)
    with pytest.raises(RunFailed, match=r"only 1 of 4 groups .* in 3 rounds \(12 prompts\); the mean reward is 1.000"):
        chosen([SOLVED] * 4, "refill", almost, rollout__refill_rounds=3)
    # enough in the last round is enough
    assert chosen([ALIVE] * 4, "refill", almost, rollout__refill_rounds=3)[0].complete


def test_a_group_with_too_few_scores_is_dropped_aloud():
    result, said = chosen([ALIVE, HALF_SCORED, THREE_QUARTERS], "keep")
    assert result.groups == (ALIVE, THREE_QUARTERS)
    assert result.left_out == (HALF_SCORED,)  # not trained on, but on record with its errors
    assert said == ["dropped 1 of 3 groups: fewer than 75% of their rollouts could be scored"]
    assert chosen([HALF_SCORED], "keep", reward__min_scored=0.5)[0].groups == (HALF_SCORED,)


def test_signal_is_what_the_task_itself_says_component_by_component_under_gdpo():
    def scored(*components):
        made = group(7, *(0.0 for _ in components))
        return replace(made, scores=tuple(Score.of(one) for one in components))

    plain, gdpo = load(None), load(None, ["advantage.combine=gdpo"])
    constant_sum = scored({"exact": 1.0, "short": 0.0}, {"exact": 0.0, "short": 1.0})
    assert not has_signal(constant_sum, plain)
    assert has_signal(constant_sum, gdpo)
    only_added = scored({"exact": 0.0, "reference_kl": 0.1, "overlong": -1.0}, {"exact": 0.0, "reference_kl": 0.2})
    assert not has_signal(only_added, plain)
    assert not has_signal(only_added, gdpo)


def test_a_component_that_weighs_nothing_is_no_signal():
    rollouts = tuple(Rollout("p0", (1,), (-1.0,), StopReason.EOS, 0, "") for _ in range(2))
    scores = (Score.of({"style": 1.0, "exact": 1.0}), Score.of({"style": 0.0, "exact": 1.0}))
    two = Group(prompt(0, (5,)), rollouts, scores)
    functions = 'reward.functions=["a.py:style", "exact"]'
    assert has_signal(two, load(None, [functions, "reward.weights=[0.5, 1.0]"]))
    assert not has_signal(two, load(None, [functions, "reward.weights=[0.0, 1.0]"]))
    opposed = Group(prompt(0, (5,)), rollouts, (Score.of({"style": 1.0, "exact": 0.0}), scores[1]))
    assert not has_signal(opposed, load(None, [functions]))
    assert has_signal(opposed, load(None, [functions, "reward.weights=[2.0, 1.0]"]))

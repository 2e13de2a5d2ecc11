"""When rewards that fail end a run, and what is said of them: one bad row never does, a broken reward does."""

from dataclasses import replace

import pytest

from assay.config import load
from assay.train.step.failed_rewards import EMPTY_ROUNDS, MOST_REPORTED, NEVER_WORKED, FailedRewards, RewardFailed
from assay.types import Failure, Prompt, Rollout, Score, StopReason

GROUP = 8
GOOD = Score.of({"exact": 1.0})


def bad(text="no digits", line=3, kind="ValueError"):
    return Score.failed(
        f"score: raised {kind}: {text}",
        Failure(f"reward.py:{line}", f"{kind}: {text}", (f"reward.py:{line} in score",)),
    )


def watching(**settings):
    said, events = [], []
    config = load(None, [f"reward.{name}={value}" for name, value in settings.items()])
    failures = FailedRewards(config, said.append, lambda kind, **facts: events.append({"kind": kind, **facts}))
    return failures, said, events


def pairs_of(prompts, first=0):
    return [
        (
            Prompt(f"row-{number}", f"{number}>", (1,), "4"),
            Rollout(f"row-{number}", (1,), (0.0,), StopReason.EOS, 0, "7"),
        )
        for number in range(first, first + prompts)
        for _ in range(GROUP)
    ]


def score(failures, prompts, failing, first=0, rollouts=range(GROUP)):
    """A round in which these rollouts of these prompts, by number, fail; returns how many were scored or tried."""
    pairs = pairs_of(prompts, first)
    scores = [bad() if index // GROUP in failing and index % GROUP in rollouts else GOOD for index in range(len(pairs))]
    seen = []
    on_score = failures.count(pairs, lambda known, total: seen.append((known, total)))
    for index, one in enumerate(scores):
        on_score(index, one)
    failures.look_at(pairs, scores)
    assert seen == [(known, len(pairs)) for known in range(1, len(pairs) + 1)]


@pytest.mark.parametrize("prompts", [1, 2, 3, 4, 48])
@pytest.mark.parametrize("row", [0, -1])
def test_one_bad_row_never_ends_a_run(prompts, row):
    failures, _, _ = watching()
    for step in range(4):
        score(failures, prompts, {row % prompts}, first=100 * step)
        score(failures, prompts, set(), first=100 * step + 50)


def score_a_round_of(texts):
    """Scores a round with these prompts in this order; the rollouts of the prompt "bad" fail."""
    failures, _, _ = watching()
    score(failures, 1, set(), first=99)
    pairs = [
        (replace(prompt, text=texts[index // GROUP]), rollout)
        for index, (prompt, rollout) in enumerate(pairs_of(len(texts)))
    ]
    on_score = failures.count(pairs, lambda known, total: None)
    for index, (prompt, _) in enumerate(pairs):
        on_score(index, bad() if prompt.text == "bad" else GOOD)


def test_a_bad_row_that_is_drawn_twice_for_a_step_is_still_one_row():
    score_a_round_of(["bad", "1>", "2>", "bad"])
    with pytest.raises(
        RewardFailed, match=r"for 9 of 9 completions, and reward\.max_failed = 0\.25 allows 8 of these 32"
    ):
        score_a_round_of(["bad"] * 4)


def test_bad_rows_up_to_the_share_are_allowed_wherever_they_stand():
    for failing in (range(12), range(36, 48)):
        failures, _, _ = watching()
        if failing.start == 0:  # beyond the first rows of a process: there a reward has not worked yet
            score(failures, 48, set(), first=500)
        score(failures, 48, set(failing))


def test_one_failure_more_than_the_share_ends_the_run():
    failures, _, _ = watching()
    score(failures, 48, set(), first=500)
    with pytest.raises(
        RewardFailed, match=r"for 97 of 97 completions, and reward\.max_failed = 0\.25 allows 96 of these 384"
    ):
        score(failures, 48, set(range(13)))


def test_the_share_is_a_setting_and_0_allows_nothing():
    failures, _, _ = watching(max_failed=0.5)
    score(failures, 48, set(range(20, 44)))
    failures, _, _ = watching(max_failed=1.0)
    score(failures, 48, set(range(1, 48)))
    failures, _, _ = watching(max_failed=0)
    with pytest.raises(
        RewardFailed, match=r"for 1 of 17 completions, and reward\.max_failed = 0 allows 0 of these 384"
    ):
        score(failures, 48, {2}, rollouts=[0])


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_reward_that_never_works_ends_the_run_after_a_few_prompts_whatever_is_allowed(share):
    failures, _, _ = watching(max_failed=share)
    with pytest.raises(RewardFailed, match=f"for any completion of the first {NEVER_WORKED} prompts; the last failure"):
        score(failures, 48, set(range(48)))


def test_prompts_that_fail_are_counted_over_steps_until_one_works():
    failures, _, _ = watching()
    for step in range(NEVER_WORKED - 1):
        score(failures, 1, {0}, first=step)
    with pytest.raises(RewardFailed, match=f"for any completion of the first {NEVER_WORKED} prompts; the last failure"):
        score(failures, 1, {0}, first=99)
    failures, _, _ = watching()
    score(failures, 1, {0}, rollouts=range(1, GROUP))
    for step in range(EMPTY_ROUNDS - 1):
        score(failures, 1, {0}, first=step)
    with pytest.raises(RewardFailed, match="8 of 8 completions, for the 8th time in a row"):
        score(failures, 1, {0}, first=99)


def test_a_round_that_works_begins_the_count_again():
    failures, _, _ = watching()
    score(failures, 1, set())
    for step in range(3 * EMPTY_ROUNDS):
        score(failures, 1, {0} if step % EMPTY_ROUNDS else set(), first=step)


def test_the_end_names_the_place_the_fix_and_all_facts():
    failures, _, _ = watching(max_failed=0, functions='["reward.py:score"]')
    with pytest.raises(RewardFailed) as caught:
        score(failures, 4, {1})
    sentence = str(caught.value)
    assert "the last failure: score: raised ValueError: no digits at reward.py:3; repair the reward" in sentence
    assert "(reward.py:score), or the rows that it fails on, and go on with --resume" in sentence
    assert caught.value.facts["prompt_id"] == "row-1"
    assert caught.value.facts["completion"] == "7"
    assert caught.value.__notes__ == [
        "reward.py:3: ValueError: no digits",
        "traceback, the last call last:",
        "  reward.py:3 in score",
        "prompt row-1: '1>'",
        "completion: '7'",
    ]


def test_the_first_failure_is_said_at_once_and_each_kind_once_in_full():
    failures, said, events = watching(max_failed=1.0)
    pairs = pairs_of(10)
    scores = [bad(text=str(index), line=index // 10, kind="KeyError") for index in range(len(pairs))]
    on_score = failures.count(pairs, lambda known, total: None)
    on_score(0, scores[0])
    assert said == ["the first completion could not be scored: score: raised KeyError: 0"]
    on_score(1, GOOD)
    failures.look_at(pairs, [scores[0], GOOD, *scores[2:]])
    failures.look_at(pairs, [scores[0], GOOD, *scores[2:]])
    assert [event["kind"] for event in events] == ["reward failed"] * MOST_REPORTED
    assert [event["place"] for event in events] == [f"reward.py:{line}" for line in range(MOST_REPORTED)]
    assert events[1]["prompt_id"] == pairs[10][0].id
    blocks = [line for line in said if line.startswith("a completion could not be scored: ")]
    assert len(blocks) == MOST_REPORTED
    assert all(line.startswith("  ") for line in said[1:] if line not in blocks)

"""Several functions as one reward: names, weights, steps, and a failure of one."""

from dataclasses import replace

import pytest
from rewards.asking import TwoDigits, asked, body, score_all

from assay.config import ConfigError
from assay.types import Score

TWO = "def style(completion): return {'short': 0.5, 'calm': 0.25}\n" + body("return completion == answer")


class FakeJudge:
    """Marks a completion by the number it is; other text it cannot judge. It answers from the last to the first."""

    def __init__(self):
        self.is_closed = False

    def score(self, asked, on_score):
        scores = []
        for index, (_, rollout) in reversed(list(enumerate(asked))):
            known = rollout.text.isdigit()
            scores.append(Score.of({"judge": int(rollout.text) / 10}) if known else Score.failed("no mark"))
            on_score(index, scores[-1])
        return scores[::-1]

    def close(self):
        self.is_closed = True


def with_judge(reward, at=0):
    """The judge is put in where its name would stand in reward.functions."""
    names = (*reward.names[:at], "judge", *reward.names[at:])
    return replace(reward, names=names, judge=FakeJudge())


def test_the_task_scores_by_itself_when_no_function_is_given(rewards):
    reward = rewards(functions=[])
    assert score_all(reward, asked("13", "14", "44")) == [
        Score.of({"digits": 1.0}),
        Score.of({"digits": 0.5}),
        Score.of({"digits": 0.0}),
    ]
    assert reward.pool is None


def test_a_task_may_leave_its_scoring_to_the_workers(rewards):
    task = TwoDigits()
    task.own_reward = "assay.rewards.builtin:exact"
    assert score_all(rewards(functions=["task"], task=task), asked("13")) == [Score.of({"task": 1.0})]


def test_components_carry_the_name_of_their_function(rewards):
    (score,) = score_all(rewards(TWO, ["reward.py:style", "task", "reward.py:score"]), asked("13"))
    assert dict(score.components) == {"style/short": 0.5, "style/calm": 0.25, "task/digits": 1.0, "score": 1.0}
    assert list(score.components) == ["style/short", "style/calm", "task/digits", "score"]
    assert score.reward == 2.75


def test_weights_multiply_all_components_of_their_function(rewards):
    functions = ["reward.py:style", "reward.py:score", "task"]
    (score,) = score_all(rewards(TWO, functions, weights=[2.0, 10.0, -1.0]), asked("13"))
    assert score.reward == 2 * 0.75 + 10 - 1
    (score,) = score_all(rewards(TWO, ["reward.py:style"], weights=[4.0]), asked("13"))
    assert (score.reward, dict(score.components)) == (3.0, {"style/short": 0.5, "style/calm": 0.25})


def test_a_sum_that_its_weights_make_too_large_is_a_failure(rewards):
    (score,) = score_all(rewards(TWO, ["reward.py:score"], weights=[1e16]), asked("13"))
    assert "beyond 1e+15" in score.error


def test_one_function_that_fails_fails_the_completion_and_it_is_told_once(rewards):
    source = "def style(completion): return None if completion == '13' else 1.0\n" + body("return float(completion)")
    reward = rewards(source, ["exact", "reward.py:style", "reward.py:score"], workers=2)
    heard = []
    scores = reward.score(asked("13", "x", "2"), lambda index, score: heard.append(score))
    assert [score.error[:40] for score in scores] == [
        "style: returned None",
        "score: raised ValueError: could not conv",
        "",
    ]
    assert dict(scores[0].components) == {}
    assert scores[2].reward == 3.0
    assert sorted(map(id, heard)) == sorted(map(id, scores))


def test_of_two_failures_the_first_function_is_named_whichever_was_faster(rewards):
    source = "def slow(completion): time.sleep(0.3); return None\ndef fast(completion): return None\n"
    (score,) = score_all(rewards(source, ["reward.py:slow", "reward.py:fast"], workers=2), asked("1"))
    assert score.error == "slow: returned None"


def test_steps_are_placed_in_the_tokens_and_weighted(rewards):
    source = "def score(completion): return [len(step) for step in completion.split(';')]\n"
    (score,) = score_all(rewards(source, step_separator=";"), asked("ab;c;def"))
    assert (score.reward, dict(score.components)) == (6.0, {"score": 6.0})
    assert score.steps == ((3, 2.0), (5, 1.0), (8, 3.0))
    again = source.replace("score", "again")
    both = rewards(
        source + again, ["reward.py:score", "reward.py:again", "task"], weights=[1, 10, 1], step_separator=";"
    )
    (score,) = score_all(both, asked("ab;c;def"))
    assert score.steps == ((3, 22.0), (5, 11.0), (8, 33.0))
    assert score.reward == 66.0


def test_a_judge_alone_is_heard_as_it_speaks(rewards):
    reward = replace(
        rewards(functions=["task"]), names=("judge",), in_task=None, judge=FakeJudge(), weights={"judge": 2}
    )
    heard = []
    places = []
    scores = reward.score(asked("5", "x"), lambda index, score: (places.append(index), heard.append(score)))
    assert [score.reward for score in scores] == [1.0, None]
    assert heard == scores[::-1]
    assert places == [1, 0]
    assert scores[1].error == "judge: no mark"


def test_a_judge_beside_others_gives_a_component_and_spares_them_what_it_could_not_judge(rewards, tmp_path):
    calls = tmp_path / "calls"
    source = body(f"open({str(calls)!r}, 'a').write(completion); return 1.0", "completion")
    reward = with_judge(rewards(source), at=1)
    heard = []
    scores = reward.score(asked("5", "x", "7"), lambda index, score: heard.append(score))
    assert [dict(score.components) for score in scores] == [
        {"score": 1.0, "judge": 0.5},
        {},
        {"score": 1.0, "judge": 0.7},
    ]
    assert [score.error for score in heard] == ["judge: no mark", "", ""]
    assert calls.read_text() == "57"


@pytest.mark.parametrize(("texts", "before"), [(["x", "y", "5"], 0), (["5", "x", "y"], 2)])
def test_failures_of_a_judge_are_told_at_once_only_while_nothing_else_is_known(rewards, texts, before):
    reward = with_judge(rewards(functions=["task"]))
    heard = []
    told_before_the_last_word = []

    class Watched(FakeJudge):
        def score(self, asked, on_score):
            scores = super().score(asked, on_score)
            told_before_the_last_word.append(len(heard))
            return scores

    replace(reward, judge=Watched()).score(asked(*texts), lambda index, score: heard.append(score))
    assert told_before_the_last_word == [before]
    assert sorted(score.error for score in heard) == ["", "judge: no mark", "judge: no mark"]


def test_closing_closes_the_judge(rewards):
    reward = with_judge(rewards(functions=["exact"]))
    reward.close()
    assert reward.judge.is_closed


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        (["maths"], "'maths' is neither file.py:function nor one of task, .*; did you mean 'math'?"),
        (["exact", "reward.py:exact"], "names 'exact' twice"),
        (["missing.py:score"], "'missing.py:score': there is no file missing.py"),
        (["missing.py"], "'missing.py' is not of the form file.py:function"),
        (["reward.py:"], "is not of the form file.py:function"),
        (["reward.py:score()"], "is not of the form file.py:function"),
    ],
)
def test_what_is_no_function_is_refused_by_name(rewards, functions, reason):
    with pytest.raises(ConfigError, match=f"reward.functions (= )?.*{reason}"):
        rewards(body("return 1.0"), functions)


def test_an_empty_step_separator_is_refused(rewards):
    with pytest.raises(ConfigError, match=r"reward\.step_separator is empty"):
        rewards(functions=["exact"], step_separator="")


def test_a_parameter_that_no_problem_can_fill_is_refused_with_the_nearest_name(rewards):
    assert score_all(rewards(body("return level", "level")), asked("1"))[0].reward == 3.0
    with pytest.raises(ConfigError, match=r"asks for 'levl', .*first problem .level.; did you mean 'level'?"):
        rewards(body("return levl", "levl"))


def test_a_field_that_one_problem_lacks_fails_its_completions_alone(rewards):
    reward = rewards(body("return level", "level"))
    (prompt, rollout), other = *asked("1"), *asked("2", id="b")
    bare = replace(prompt, fields={})
    scores = score_all(reward, [(bare, rollout), other])
    assert [score.reward for score in scores] == [None, 3.0]
    assert scores[0].error == "score: asks for 'level', which is not a field of this problem"

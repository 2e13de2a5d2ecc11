import pytest

from assay.config import ConfigError
from assay.tasks.sort_digits import SortDigits
from assay.types import Prompt, Rollout, StopReason

TASK = SortDigits(min_digits=3, max_digits=5, seed=1)


def reward(text, answer="1234", stop=StopReason.EOS):
    return TASK.score(Prompt("a", "4231>", (1,), answer), Rollout("a", (1,), (0.0,), stop, 0, text)).reward


def test_only_the_exact_answer_ended_by_the_policy_itself_is_right():
    assert reward("1234") == 1.0
    for wrong in ("", "123", "12344", "1243", " 1234", "1234>"):
        assert reward(wrong) == 0.0
    assert reward("1234", stop=StopReason.LENGTH) == 0.0


def test_problems_are_fixed_by_seed_and_number_and_cover_all_lengths():
    problems = [TASK.training_problem(index) for index in range(300)]
    assert problems == [TASK.training_problem(index) for index in range(300)]
    assert {len(problem.answer) for problem in problems} == {3, 4, 5}
    assert all(problem.answer == "".join(sorted(problem.text[:-1])) for problem in problems)
    other = SortDigits(3, 5, seed=2)
    assert sum(problem.text == other.training_problem(i).text for i, problem in enumerate(problems)) < 10


def test_the_first_problems_never_change_since_recorded_runs_depend_on_them():
    task = SortDigits(4, 6, seed=1)
    assert [task.training_problem(index).text for index in range(3)] == ["60915>", "98484>", "7328>"]
    assert task.training_problem(2).id == "sort-train-2"


def test_heldout_texts_are_never_trained_on():
    training = {TASK.training_problem(index).text for index in range(3000)}
    heldout = {TASK.heldout_problem(index).text for index in range(500)}
    assert len(training) > 2000
    assert len(heldout) > 300
    assert not training & heldout


def test_fewer_digits_at_most_than_at_least_are_refused():
    with pytest.raises(ConfigError, match=r"task\.options\.min_digits = 5 exceeds task\.options\.max_digits = 4"):
        SortDigits(5, 4, seed=1)

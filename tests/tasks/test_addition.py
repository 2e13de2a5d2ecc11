import re
import time

import pytest
from tasks.scoring import scored

from assay.config import ConfigError
from assay.tasks.addition import Addition, AdditionOptions
from assay.tasks.last_number import last_number
from assay.types import Problem, StopReason

FEW_SHOT = Addition(AdditionOptions(), seed=1)
CHAT = Addition(AdditionOptions(style="chat"), seed=1)
TWELVE = Problem("a", "4 + 8 =", "12")


def asked(problem):
    """The two numbers, smaller first."""
    left, right = re.findall(r"\d+", problem.text.splitlines()[-1])
    return tuple(sorted((int(left), int(right))))


def shown(problem):
    return {tuple(sorted(map(int, re.findall(r"\d+", line)[:2]))) for line in problem.text.splitlines()[:-1]}


@pytest.mark.parametrize(("digits", "low", "high"), [(1, 0, 9), (2, 10, 99)])
@pytest.mark.parametrize("style", ["few_shot", "chat"])
def test_the_answer_is_the_sum_and_both_numbers_have_the_digits_asked_for(digits, low, high, style):
    task = Addition(AdditionOptions(digits, style), seed=3)
    for problem in [task.training_problem(index) for index in range(200)]:
        assert int(problem.answer) == sum(asked(problem))
        assert all(low <= number <= high for number in asked(problem))


def test_no_pair_is_trained_on_and_held_out_in_whatever_order():
    training = {asked(FEW_SHOT.training_problem(index)) for index in range(3000)}
    heldout = {asked(FEW_SHOT.heldout_problem(index)) for index in range(600)}
    assert (len(training), len(heldout)) == (43, 12)  # of 55 pairs
    assert not training & heldout
    other_seed = Addition(AdditionOptions(), seed=99)
    assert not heldout & {asked(other_seed.training_problem(index)) for index in range(3000)}


@pytest.mark.parametrize("digits", [1, 2])
def test_the_solved_examples_are_neither_held_out_nor_the_question_itself(digits):
    task = Addition(AdditionOptions(digits), seed=1)
    heldout = {asked(task.heldout_problem(index)) for index in range(2000)}
    for problem in [task.training_problem(index) for index in range(3000)]:
        assert len(shown(problem)) == 2
        assert asked(problem) not in shown(problem)
        assert not shown(problem) & heldout


def test_few_shot_wants_the_whole_line_to_be_the_sum_and_the_line_to_end():
    assert scored(FEW_SHOT, TWELVE, " 12", StopReason.STOP).reward == 1.0
    assert scored(FEW_SHOT, TWELVE, " 12\n5 + 5 = 10", StopReason.LENGTH).reward == 1.0
    assert scored(FEW_SHOT, TWELVE, " 12", StopReason.LENGTH).reward == 0.0
    for wrong in (" 13", "", "\n12", " 12.", " 4 + 8 = 12", " 120"):
        assert scored(FEW_SHOT, TWELVE, wrong).reward == 0.0


def test_in_a_chat_the_last_number_counts():
    assert CHAT.training_problem(0).messages == ({"role": "user", "content": CHAT.training_problem(0).text},)
    for right in ("12", "4 + 8 = 12.", "The sum is **012**", "It is 12.0!"):
        assert scored(CHAT, TWELVE, right).reward == 1.0
    for wrong in ("", "twelve", "12 is 4 + 8", "-12", "12.5", "1 2"):
        assert scored(CHAT, TWELVE, wrong).reward == 0.0


def test_the_last_number_knows_minus_signs_and_thousands():
    assert last_number("from 10 to -3") == "-3"
    assert last_number("10-3") == "3"
    assert last_number("\u22125") == "-5"
    assert last_number("1,234,567 in all") == "1234567"
    assert last_number("3,4") == "4"


@pytest.mark.parametrize("text", ["9" * 20_000, "1," * 10_000, "-" * 20_000, "1." * 10_000, "\x00\n" * 10_000])
def test_hostile_text_is_scored_quickly(text):
    start = time.process_time()
    assert scored(CHAT, TWELVE, text).reward == 0.0
    assert scored(FEW_SHOT, TWELVE, text).reward == 0.0
    assert time.process_time() - start < 0.5


def test_three_digits_are_refused():
    with pytest.raises(ConfigError, match=r"task\.options\.digits = 3 must be 1 or 2"):
        Addition(AdditionOptions(digits=3), seed=1)

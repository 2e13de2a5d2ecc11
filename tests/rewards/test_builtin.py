"""The rewards that come with Assay, one text at a time."""

import pytest
from rewards.asking import asked, score_all

from assay.config import ConfigError
from assay.rewards.builtin import exact, last_number, whole_match
from assay.tasks import last_number as numbers
from assay.tasks.last_number import plain


def test_exact_forgives_space_around_the_text_and_nothing_else():
    assert exact(" 13\n", "13") == 1.0
    assert exact("1 3", "13") == 0.0
    assert exact("13.", "13") == 0.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("It is 1,234.", "1234"),
        ("1234", "1,234"),
        ("so -4", "-4"),
        ("so \u22124", "-4"),
        ("-4", "\u22124"),
        ("It is 12.", "12"),
        ("3.50 dollars", "3.5"),
        ("x = .5", "0.5"),
        ("10-4", "4"),
        ("5, 6, 7", "7"),
        ("1,2,3", "3"),
        ("1e3", "1000"),
        ("12", "3 * 4 = 12\n#### 12"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_the_last_number_is_found(completion, answer):
    assert last_number(completion, answer) == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("12 or 13", "12"),
        ("4", "-4"),
        ("no number", "12"),
        ("", "0"),
        ("\u0661\u0662", "12"),
        ("12.5", "12"),
        ("1234", "234"),
        ("1e999999999999", "1"),
        ("10-4", "-4"),
    ],
)
def test_another_last_number_or_none_is_worth_nothing(completion, answer):
    assert last_number(completion, answer) == 0.0


def test_a_reference_without_a_number_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="the answer 'twelve' is not one number; use math"):
        last_number("12", "twelve")


@pytest.mark.parametrize("answer", ["3/4", "1 1/2", r"2\pi", "3, 4", "12 apples", "", "1,234567"])
def test_an_answer_that_is_not_one_number_is_an_error(answer):
    with pytest.raises(ValueError, match="is not one number; use math"):
        last_number("1/4", answer)


def test_a_fraction_is_not_paid_for_its_last_number_but_a_failure_that_names_it(rewards):
    (score,) = score_all(rewards(functions=["last_number"]), asked("1/4", answer="3/4"))
    assert score.error == "last_number: raised ValueError: the answer '3/4' is not one number; use math"


def test_the_task_and_the_reward_read_the_same_last_number():
    texts = {".5": "0.5", "x 5e3": "5000", "1,234567": "234567", "(3)-4": "4", "+7": "7", "-0.0": "0", "1.2.3": "3"}
    for text, number in texts.items():
        assert plain(numbers.last_number(text)) == number
        assert last_number(text, number) == 1.0


def test_the_whole_text_must_match_the_format():
    assert whole_match("<a>1</a>", "<a>[0-9]</a>") == 1.0
    assert whole_match("<a>1</a>!", "<a>[0-9]</a>") == 0.0
    assert whole_match("x<a>1</a>", "<a>[0-9]</a>") == 0.0
    assert whole_match("a\nb", "(?s)a.b") == 1.0


def test_a_format_that_takes_forever_is_ended(rewards):
    reward = rewards(functions=["format"], format="(a+)+b", timeout=0.5)
    endless, matching = score_all(reward, asked("a" * 60, "aab"))
    assert (endless.error, matching.components) == ("format: took longer than 0.5 s", {"format": 1.0})


@pytest.mark.parametrize(
    ("pattern", "reason"), [("", "'format' needs reward.format"), ("(", "reward.format = '\\(' is not a regular")]
)
def test_a_format_that_is_none_is_refused(rewards, pattern, reason):
    with pytest.raises(ConfigError, match=reason):
        rewards(functions=["format"], format=pattern)


def test_math_without_its_package_is_refused_with_the_command(rewards, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'assay\[math\]'"):
        rewards(functions=["math"])

"""The answer of a completion against the reference, by mathematics."""

import pytest
from rewards.asking import asked, score_all

pytest.importorskip("math_verify")

from assay.rewards.math_answer import equal, extracted

RIGHT = [
    ("<answer>12</answer>", "12"),
    ("- 4", "-4"),
    ("\u22124", "-4"),
    ("the answer is - 4", "-4"),
    ("1e3", "1000"),
    ("(1,2)", "1,2"),
    ("1,2", "(1,2)"),
    (r"\{2,1\}", r"\{1,2\}"),
    (r"\boxed{3} no, \boxed{4}", "4"),
    (r"\boxed{4} and \boxed{5", "4"),
    ("A", "(A)"),
    ("(A)", "A"),
    ("The answer is: B) 12", "B"),
    ("yes", "yes"),
    ("The answer is yes.", "yes"),
    (r"\boxed{\text{Yes}}", "yes"),
    ("The answer is 42, since 6 * 7 = 42, not 43", "42"),
    ("**Answer:** 3.5.", "3.5"),
    ("I count 3 bags, so 1,234 apples.", "1234"),
    (r"so $x = \frac{1}{2}$.", "0.5"),
    (r"\[ \frac{3}{4} \]", "3/4"),
    ("2*pi", r"2\pi"),
    ("x^2+1", "1+x**2"),
    (r"<think>\boxed{3}</think><answer>12</answer>", "12"),
    (r"<answer>3</answer>, no: \boxed{4}", "4"),
    (r"<answer>It is \boxed{12}, not 13</answer>", "12"),
    ("12", "3 * 4 = 12\n#### 12"),
    ("0.333333", r"\frac13"),
]
WRONG = [
    ("", "12"),
    ("banana", "12"),
    ("sye", "yes"),
    ("B", "A"),
    ("12**2", "12"),
    ("-4", "4"),
    (r"\boxed{12} \boxed{13}", "12"),
    ("(2,1)", "(1,2)"),
    ("2,1", "(1,2)"),
    ("I have 12 but the answer is 13", "12"),
    (r"\boxed{12$ or $13}", "12"),
    (r"\frac{", "5"),
    ("\x00\ud800", "12"),
    (r"$\begin{pmatrix}1&2\end{pmatrix}$", "5"),
    (r"\boxed{1/0}", "5"),
    (r"\boxed{__import__('os').system('exit 1')}", "5"),
    ("12" * 10_000, "12"),
    (r"\boxed{" * 2000, "12"),
]


@pytest.mark.parametrize(("completion", "answer"), RIGHT)
def test_a_right_answer_is_recognised_in_many_forms(completion, answer):
    assert equal(completion, answer) == 1.0


@pytest.mark.parametrize(("completion", "answer"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_answer_is_not(completion, answer):
    assert equal(completion, answer) == 0.0


@pytest.mark.parametrize("answer", ["??", r"\frac{", " ", "$$"])
def test_a_reference_that_is_no_formula_is_an_error_that_names_it(answer):
    with pytest.raises(ValueError, match="the reference answer '"):
        equal("12", answer)


def test_the_answer_that_comes_last_counts():
    assert extracted("<answer>1</answer> or <answer>2</answer>") == "2"
    assert extracted(r"\boxed{\frac{1}{\sqrt{2}}}") == r"\frac{1}{\sqrt{2}}"
    assert extracted("First $x=1$, then 7 more.") == "7"
    assert extracted("nothing here") == ""


def test_in_a_worker_a_bomb_and_a_reference_that_is_no_formula_are_failures(rewards):
    pairs = [*asked("13"), *asked("12", answer="??"), *asked("9^{9^{9^9}}")]
    right, unreadable, bomb = score_all(rewards(functions=["math"], timeout=1.5), pairs)
    assert right.reward == 1.0
    assert unreadable.error.startswith("math: raised ValueError: the reference answer '??' is not a formula")
    assert bomb.error == "math: took longer than 1.5 s"


def test_a_bomb_is_defused_by_an_alarm(monkeypatch):
    monkeypatch.setattr("assay.rewards.math_answer.ALARM_SECONDS", 1)
    with pytest.raises(BaseException, match="Timeout during comparison"):
        equal("99999999!", "12")

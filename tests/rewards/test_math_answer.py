"""The answer of a completion against the reference, by mathematics."""

import time

import pytest
from rewards.asking import asked, score_all

pytest.importorskip("math_verify")

from assay.rewards.math_answer import equal, extract_answer

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
    (r"\boxed{\frac{3}{4} \text{ miles}}", "3/4"),
    (r"\boxed{6\sqrt{13}\text{ units}}", r"6\sqrt{13}"),
    (r"\boxed{2\pi \text{ square meters}}", r"2\pi"),
    (r"\boxed{12\,\text{cm}^2}", "12"),
    (r"\boxed{\text{Area} = 5}", "5"),
    (r"\boxed{12 miles}", "12"),
    (r"\boxed{12}", r"12 \text{ miles}"),
    (r"\boxed{1+abc}", "abc+1"),
    (r"so $\frac{3}{4} \text{ miles}$.", "3/4"),
    ("The answer is 12 as required", "12"),
    ("The answer is 6 by AM-GM", "6"),
    ("The answer is 12 in total", "12"),
    ("The answer is 12 so we are done", "12"),
    ("The answer is 12 (as required)", "12"),
    (r"The answer is \frac{3}{4} of the cake", "3/4"),
    ("2^{10}", "1024"),
    ("<answer>It is 12</answer>", "12"),
    ("5!", "120"),
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
    (r"\boxed{\frac{3}{4} \text{ miles}}", "4"),
    (r"\boxed{6\sqrt{13}\text{ units}}", "13"),
    (r"\boxed{2\pi \text{ square meters}}", "2"),
    (r"\boxed{abc+1}", "1"),
    (r"\boxed{I had 3 and then 4}", "4"),
    (r"\boxed{3 or 4 apples}", "4"),
    (r"\boxed{5\text{ or }7}", "57"),
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}"),
    ("The answer is 12 or 13", "12"),
    ("The answer is 12 and 13", "12"),
    ("\uff11\uff12", "12"),
    ("\u0661\u0662", "12"),
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
    assert extract_answer("<answer>1</answer> or <answer>2</answer>") == "2"
    assert extract_answer(r"\boxed{\frac{1}{\sqrt{2}}}") == r"\frac{1}{\sqrt{2}}"
    assert extract_answer("First $x=1$, then 7 more.") == "7"
    assert extract_answer("nothing here") == ""


def test_in_a_worker_a_bomb_is_worth_nothing_and_a_reference_that_is_no_formula_is_a_failure(rewards):
    pairs = [*asked("13"), *asked("12", answer="??"), *asked("9^{9^{9^9}}")]
    right, unreadable, bomb = score_all(rewards(functions=["math"], timeout=1.5), pairs)
    assert (right.reward, bomb.reward) == (1.0, 0.0)
    assert unreadable.error.startswith("math: raised ValueError: the reference answer '??' is not a formula")


BOMBS = ["10^{10^{10}}", "9**9**9", "99999999!", "(9!)!", "2^{99999}", "2^(9!)", "(" * 400 + "1" + ")" * 400]


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_a_bomb_costs_less_than_a_second(bomb):
    began = time.process_time()
    assert equal(bomb, "12") == 0.0
    assert time.process_time() - began < 1.0


def test_a_formula_that_takes_too_long_is_ended_by_an_alarm_and_worth_nothing(monkeypatch):
    monkeypatch.setattr("assay.rewards.math_answer._is_bomb", lambda text: False)
    monkeypatch.setattr("assay.rewards.math_answer.ALARM_SECONDS", 1)
    assert equal("99999999!", "12") == 0.0


@pytest.mark.parametrize("answer", ["9**9**9", "\uff11\uff12"])
def test_a_reference_that_cannot_be_read_is_an_error(answer):
    with pytest.raises(Exception, match=r"reference|Sympify"):
        equal("12", answer)


SAME = [
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    r"\overline{ABCD}",
    r"\angle ABC",
    "abc+1",
    r"\frac{3}{4} \text{ miles}",
    "??",
    "9**9**9",
]


@pytest.mark.parametrize("text", SAME)
def test_the_same_text_is_always_right(text):
    for completion in (
        rf"\boxed{{{text}}}",
        f"The answer is ${text}$.",
        text,
        rf"\boxed{{ {text.replace(' ', '  ')} }}",
    ):
        assert equal(completion, text) == 1.0, completion

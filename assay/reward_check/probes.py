"""Problems -> probes: texts of which it is known, without any model, how a sound reward orders them.

The right answer stands in several forms, because one reward wants it bare and another in tags: a wrong answer is
always compared with the right one in the same form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from assay.doctor.evidence.reward import PROBLEMS_IN_ALL_FORMS, Probe, Role
from assay.tasks.last_number import last_number, plain
from assay.types import Problem, Prompt, Rollout, StopReason

END = 0x110000  # the token after the last character: no character has this number
_WHOLE = re.compile(r"[-+]?\d+")
_DECIMAL = re.compile(r"\d+\.\d+")


FORMS: Mapping[str, Callable[[str], str]] = {
    "plain": lambda answer: answer,
    "newline after": lambda answer: f"{answer}\n",
    "space after": lambda answer: f"{answer} ",
    "period after": lambda answer: f"{answer}.",
    "in words": lambda answer: f"The answer is {answer}.",
    "boxed": lambda answer: f"\\boxed{{{answer}}}",
    "in answer tags": lambda answer: f"<answer>{answer}</answer>",
    "thought, then tags": lambda answer: f"<think>I go step by step.</think>\n<answer>{answer}</answer>",
    "Unicode minus": lambda answer: answer.replace("-", "\u2212"),
}

_WORD = "banana"
NONSENSE: Mapping[str, str] = {
    "a word": _WORD,
    "words": "the purple ladder sings below the quiet soup",
    "marks": "?!?! ... ;;;",
    "the word None": "None",
}

# what a model can write on the worst day of a run
HOSTILE: Mapping[str, str] = {
    "whitespace": " \n\t \n",
    "20,000 characters": "word " * 4000,
    "a power tower": "9**9**9",
    "a power tower in LaTeX": "\\boxed{9^{9^{9^{9}}}}",
    "deep brackets": "(" * 3000 + ")" * 3000,
    "deep lists": "[" * 3000,
    "control characters": "\x00\x01\x1b[2J\x7f 1 \r",
    "a Unicode minus": "\u22124",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 1",
    "a code fence": "```python\nprint(1)\n```",
    "open braces": "{{{0}}} %s %d {answer}",
    "open tags": "<answer><answer></think>",
    "half a boxed": "\\boxed{\\frac{1}{",
}
# what a policy can say without a look at the question
GUESSES = ("yes", "true", "1", "final answer")
_TRUTHS = {"yes", "no", "true", "false", "0", "1"}  # answers that may be meant by one of the guesses
_TALK_WORDS = (2, 8, 32, 128, 512)


def probes_of(problems: Sequence[Problem]) -> list[Probe]:
    """All probes, the most informative first: if time runs out, the least is lost."""
    ordinary = [probe for number in range(len(problems)) for probe in _ordinary(problems, number)]
    nonsense = [Probe(Role.NONSENSE, name, 0, text) for name, text in NONSENSE.items() if text != problems[0].answer]
    hostile = [Probe(Role.HOSTILE, name, 0, text) for name, text in HOSTILE.items()]
    hostile.append(Probe(Role.HOSTILE, "the prompt repeated", 0, problems[0].text * 3))
    truth = plain(last_number(problems[0].answer)) == "1" or problems[0].answer.strip().lower() in _TRUTHS
    guesses = [Probe(Role.SHORTCUT, "a guess", 0, text) for text in GUESSES if not truth]
    tricks = [probe for number in range(len(problems)) for probe in _tricks(problems, number)]
    wrapped = [
        probe
        for number in range(min(len(problems), PROBLEMS_IN_ALL_FORMS))
        for probe in _probes_in_all_forms(problems, number)
    ]
    others = [probe for probe in (*nonsense, *guesses, *hostile, *wrapped, *tricks) if probe not in set(ordinary)]
    return [*ordinary, *others]


def is_ordinary(probe: Probe) -> bool:
    """Whether it is among the few that are asked of every problem, and asked again to see if the score holds."""
    return (probe.role in (Role.RIGHT, Role.WRONG, Role.EMPTY) and probe.name == "plain") or probe.text == _WORD


def as_rollout(problem: Problem, text: str) -> tuple[Prompt, Rollout]:
    """A probe as training would hand it to a reward. No model is at hand, so that a character counts as a token."""
    prompt = Prompt(problem.id, problem.text, (*map(ord, problem.text), END), problem.answer, problem.fields)
    tokens = (*map(ord, text), END)
    return prompt, Rollout(problem.id, tokens, (0.0,) * len(tokens), StopReason.EOS, 0, text)


def decode(tokens: Sequence[int]) -> str:
    """
    >>> decode(as_rollout(Problem("sum-1", "1+1=", "2"), "two")[1].tokens)
    'two'
    """
    return "".join(chr(token) for token in tokens if token != END)


def wrong_answer(problems: Sequence[Problem], number: int) -> str:
    """The answer of the next problem that has another one; "" if there is none."""
    own = problems[number].answer.strip()
    others = (*problems[number + 1 :], *problems[:number])
    return next((other.answer for other in others if other.answer.strip() not in ("", own)), "")


def _ordinary(problems: Sequence[Problem], number: int) -> list[Probe]:
    right, wrong = problems[number].answer, wrong_answer(problems, number)
    found = [Probe(Role.RIGHT, "plain", number, right)] if right.strip() else []
    found += [Probe(Role.WRONG, "plain", number, wrong)] if wrong else []
    nonsense = [Probe(Role.NONSENSE, "a word", number, _WORD)] if right.strip() != _WORD else []
    return [*found, Probe(Role.EMPTY, "plain", number, ""), *nonsense]


def _probes_in_all_forms(problems: Sequence[Problem], number: int) -> list[Probe]:
    right, wrong = problems[number].answer, wrong_answer(problems, number)
    return [
        Probe(role, name, number, form(answer))
        for name, form in FORMS.items()
        for role, answer in ((Role.RIGHT, right), (Role.WRONG, wrong))
        if answer.strip() and form(answer) != answer
    ]


def _tricks(problems: Sequence[Problem], number: int) -> list[Probe]:
    right, wrong = problems[number].answer.strip(), wrong_answer(problems, number)
    if not right or not wrong:
        return []
    found = [Probe(Role.LISTED, "wrong, right, wrong", number, f"{wrong} {right} {wrong}")]
    if _WHOLE.fullmatch(right):
        found.append(Probe(Role.EXTENDED, "behind", number, f"{right}7"))
    if _WHOLE.fullmatch(right) or _DECIMAL.fullmatch(right):  # one more decimal may be within a reward's tolerance
        found.append(Probe(Role.EXTENDED, "in front", number, f"7{right}"))
    elif right.isalpha():
        found.append(Probe(Role.EXTENDED, "in front", number, f"x{right}"))
    if number < PROBLEMS_IN_ALL_FORMS:
        found += _shortcuts(problems, number, wrong)
    if number < 2:
        talk = [(words, "well " * words + wrong) for words in _TALK_WORDS]
        found += [Probe(Role.LONG, f"{words} words", number, text) for words, text in talk]
    return found


def _shortcuts(problems: Sequence[Problem], number: int, wrong: str) -> list[Probe]:
    """The question said again, unless it holds the answer; and the right characters in another order."""
    question, right = problems[number].text, problems[number].answer.strip()
    found = []
    if question.strip() and right not in question:
        found += [
            Probe(Role.SHORTCUT, "the prompt", number, question),
            Probe(Role.SHORTCUT, "the prompt and a wrong answer", number, f"{question} {wrong}"),
        ]
    sign, letters = (right[0], right[1:]) if right[0] in "+-" else ("", right)
    if (letters.isdecimal() or right.isalpha()) and letters[::-1] != letters:
        found.append(Probe(Role.SHORTCUT, "the right answer backwards", number, f"{sign}{letters[::-1]}"))
    return found

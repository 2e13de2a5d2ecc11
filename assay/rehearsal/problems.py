"""Questions with answers that can be computed: rows of stand-in data, and texts that stand-in models learn.

All totals lie in a small range, so that a small model answers about every third question correctly whatever its prompt
looks like, and the script's own reward then differs within a group. Each question is determined by its number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NAMES = ("Tom", "Anna", "Sam", "Lily", "Ben", "Eva", "Max", "Nina")
_THINGS = ("apples", "books", "coins", "cards", "pens", "cups", "stones", "shells")
_LEAST_TOTAL, _MOST_TOTAL = 3, 6
_FILLERS = (
    "The day was long and the market was open from the morning to the evening.",
    "A friend came by and they talked about the weather for a while.",
    "Later it began to rain, and the people went home.",
    "Nothing else in this story changes the number of things.",
    "The road to the school is old and goes along the river.",
)
LONG_EVERY, LONGEST_EVERY = 8, 32  # of that many questions one has a story before it, or a very long one
_STORY, _LONGEST_STORY = (6, 20), 44  # sentences: about 80 to 280, and 600 tokens


@dataclass(frozen=True)
class Problem:
    number: int
    question: str
    first: int
    second: int
    numbers: tuple[int, ...]  # of a puzzle: make `target` of them
    target: int
    expression: str  # that makes it

    @property
    def total(self) -> int:
        return self.first + self.second


# all sums and products of 1, 2 and 3 that a small model can say: one of them is drawn for each puzzle
_PUZZLES = ((6, "{0} + {1} + {2}"), (5, "{0} * {1} + {2}"), (7, "{0} + {1} * {2}"), (4, "{2} + {1} - {0}"))


def problem(number: int) -> Problem:
    draw = random.Random(7919 * number + 1)
    total = draw.randint(_LEAST_TOTAL, _MOST_TOTAL)
    first = draw.randint(1, total - 1)
    name, thing = draw.choice(_NAMES), draw.choice(_THINGS)
    question = (
        f"{name} has {first} {thing} and gets {total - first} more. How many {thing} does {name} have now?"
        if draw.random() < 0.7
        else f"What is {first} + {total - first}?"
    )
    if number % LONG_EVERY == LONG_EVERY - 1:
        is_longest = number % LONGEST_EVERY == LONGEST_EVERY - 1
        sentences = draw.choices(_FILLERS, k=_LONGEST_STORY if is_longest else draw.randint(*_STORY))
        question = " ".join([*sentences, question])
    target, shape = draw.choice(_PUZZLES)
    numbers = [1, 2, 3]
    expression = shape.format(*numbers)
    draw.shuffle(numbers)
    return Problem(number, question, first, total - first, tuple(numbers), target, expression)


@dataclass(frozen=True)
class Formats:
    """How answers are written, as the script's own text asks for it."""

    thinking: tuple[str, ...] = ()  # names of tags around the reasoning
    answer: tuple[str, ...] = ()  # names of tags around the answer
    marks: tuple[str, ...] = ()  # of MARKS
    prose: tuple[str, ...] = ()  # of its prompts

    @property
    def is_plain(self) -> bool:
        return not (self.thinking or self.answer or self.marks)


MARKS = {
    "boxed": r"The answer is \boxed{{{0}}}.",
    "####": "#### {0}",
    "answer is": "The answer is {0}.",
    "Answer:": "Answer: {0}",
}
USUAL = Formats(("think",), ("answer",), ("boxed", "####", "answer is"))
MOST_TAGS = 2
MOST_PROSE, _SHORTEST_PROSE, _LONGEST_PROSE = 6, 25, 3000
_PROSE = re.compile(r"[Yy]ou are|[Aa]ssistant|step by step|format|answer|</|solve|reason", re.MULTILINE)
_TAG = re.compile(r"</([A-Za-z][\w-]{1,24})>")
_THINKING = re.compile(r"think|reason|work|thought|scratch|analy|plan|cot", re.IGNORECASE)
_MARKUP = frozenset("html body div p b i a br span table tr td ul li h1 h2 code pre s img tool_call tools".split())


def formats_of(texts: Iterable[str]) -> Formats:
    """Of the script's text constants: tags that are closed somewhere in them, and the usual marks."""
    thinking: dict[str, None] = {}
    answer: dict[str, None] = {}
    marks: dict[str, None] = {}
    prose: dict[str, None] = {}
    for text in texts:
        for tag in _TAG.findall(text):
            if tag.lower() not in _MARKUP:
                (thinking if _THINKING.search(tag) else answer).setdefault(tag)
        for mark in MARKS:
            if mark in text:
                marks.setdefault(mark)
        if _PROSE.search(text) and _SHORTEST_PROSE < len(text) < _LONGEST_PROSE:
            prose.setdefault(text)
    chosen = sorted(prose, key=lambda text: -len(_TAG.findall(text)))[:MOST_PROSE]
    return Formats(tuple(thinking)[:MOST_TAGS], tuple(answer)[:MOST_TAGS], tuple(marks), tuple(chosen))


def completion(draw: random.Random, asked: Problem, formats: Formats, is_puzzle: bool) -> str:
    """An answer in one of the formats: about half are right, some have no format at all, some do not end in time."""
    formats = USUAL if formats.is_plain else formats
    if is_puzzle:
        shape = draw.choice(_PUZZLES)[1]
        work = said = asked.expression if draw.random() < 0.3 else shape.format(*sorted(asked.numbers))
    else:
        total = asked.total if draw.random() < 0.5 else draw.randint(_LEAST_TOTAL, _MOST_TOTAL)
        said, work = str(total), f"{asked.first} + {asked.second} = {total}"
    kind = draw.random()
    if kind < 0.06:
        return f"So {said}."
    if kind < 0.14:  # longer than what is sampled
        work = f"{work}. " + " ".join(draw.choices(_FILLERS, k=2))
    elif draw.random() < 0.5:
        work = "add"
    with_tags, with_marks = bool(formats.thinking or formats.answer), bool(formats.marks)
    if with_tags and (not with_marks or draw.random() < 0.75):
        return _tagged(draw, formats, work, said)
    mark = MARKS[draw.choice(formats.marks)].format(said)
    if formats.thinking and draw.random() < 0.5:
        return f"<{formats.thinking[0]}>{work}</{formats.thinking[0]}>\n{mark}"
    return mark if draw.random() < 0.4 else f"{work}\n{mark}"


def _tagged(draw: random.Random, formats: Formats, work: str, said: str) -> str:
    edge = "\n" if draw.random() < 0.5 else ""
    between = "\n" if draw.random() < 0.6 else ""
    parts = []
    if formats.thinking:
        tag = draw.choice(formats.thinking)
        parts.append(f"<{tag}>{edge}{work}{edge}</{tag}>")
    if formats.answer:
        tag = draw.choice(formats.answer)
        parts.append(f"<{tag}>{edge}{said}{edge}</{tag}>")
    elif formats.marks:
        parts.append(MARKS[draw.choice(formats.marks)].format(said))
    return between.join(parts) + ("\n" if edge and between and draw.random() < 0.5 else "")


_INSTRUCTIONS = (
    "",
    "You are a helpful assistant.",
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Respond in the following format: {tags}",
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. {tags}",
    "Let me solve this step by step.",
)
_MOST_WORDS = 24
_SYMBOLS = "<>/\\{}[]#+-*=():.,?!\n"


def instruction(draw: random.Random, formats: Formats) -> str:
    """A part of the script's own prompts, or a usual one."""
    if formats.prose and draw.random() < 0.6:
        words = draw.choice(formats.prose).split(" ")
        first = draw.randrange(len(words))
        last = len(words) if draw.random() < 0.5 else min(len(words), first + _MOST_WORDS)
        return " ".join(words[max(first, last - _MOST_WORDS) : last])
    tags = " ".join(f"<{tag}> ... </{tag}>" for tag in (*formats.thinking, *formats.answer))
    return draw.choice(_INSTRUCTIONS).replace("{tags}", tags)


def puzzle_question(asked: Problem) -> str:
    return (
        f"Using the numbers {list(asked.numbers)}, create an equation that equals {asked.target}. You can use basic "
        "arithmetic operations (+, -, *, /) and each number can only be used once."
    )


def texts(formats: Formats, count: int) -> list[str]:
    """For the vocabulary of a tokenizer: questions, instructions and answers."""
    draw = random.Random(1)
    lines = [f"{word} {word.lower()}" for word in ("system", "user", "assistant", "User:", "Assistant:", "Question:")]
    lines += [_SYMBOLS, *formats.prose]
    for number in range(count):
        asked, is_puzzle = problem(number), number % 5 == 0
        question = puzzle_question(asked) if is_puzzle else asked.question
        lines.append(f"{instruction(draw, formats)}\n{question}\n{completion(draw, asked, formats, is_puzzle)}")
    return lines


def dialogues(formats: Formats, count: int) -> Sequence[tuple[str, str, str]]:
    """(instruction, question, answer) to train a stand-in on."""
    draw = random.Random(5)
    rows = []
    for number in range(count):
        asked, is_puzzle = problem(number * LONG_EVERY + number % (LONG_EVERY - 1)), draw.random() < 0.2
        question = puzzle_question(asked) if is_puzzle else asked.question
        rows.append((instruction(draw, formats), question, completion(draw, asked, formats, is_puzzle)))
    return rows

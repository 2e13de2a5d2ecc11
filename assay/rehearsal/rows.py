"""Rows of data sets that are not there: the columns that the script asks for, questions whose answers are known."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from assay.rehearsal.problems import Problem, problem, puzzle_question

ROWS = 512  # of a split to train on
HELD_OUT_ROWS = 32  # of any other: an evaluation before the first step takes little time

# keys of dictionaries that are batches, configurations or answers of a server, and not columns
_NOT_COLUMNS = frozenset(
    "input_ids attention_mask position_ids logits loss params lr content role name args device config model optimizer "
    "state_dict step epoch rewards advantages logprobs old_logprobs completions seed choices message url status error "
    "generated_text kl hidden_states past_key_values token_type_ids".split()
)
_CALLS = frozenset("get pop rename_column remove_columns select_columns sort unique with_format set_format".split())
_COLUMN = re.compile(r"[A-Za-z][\w\- ]{0,30}")


def columns_asked(sources: Iterable[ast.Module]) -> dict[str, bool]:
    """Names that the script looks up in something, in their order, and whether it computes with what it finds."""
    found: dict[str, bool] = {}
    for tree in sources:
        for node in ast.walk(tree):
            for text in _looked_up(node):
                if _COLUMN.fullmatch(text) and text not in _NOT_COLUMNS and not text.isupper():
                    found.setdefault(text, False)
            for text in _computed_with(node):
                found[text] = True
    return found


def _computed_with(node: ast.AST) -> list[str]:
    """Of `row["level"] <= 3`, `2 * row["size"]`."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Mod, ast.Add)):
        parts = [node.left, node.right]
    else:
        return []
    if not any(isinstance(part, ast.Constant) and isinstance(part.value, (int, float)) for part in parts):
        return []
    return [text for part in parts if isinstance(part, ast.Subscript) for text in _texts([part.slice])]


def _looked_up(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Subscript):
        return _texts([node.slice])
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _CALLS:
            return _texts(node.args)
        if called in ("getattr", "hasattr"):
            return ()
    if isinstance(node, ast.keyword) and node.arg is not None and re.search(r"column|field|_key$", node.arg):
        return _texts([node.value])
    if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
        return _texts([node.left])
    return ()


def _texts(nodes: Iterable[ast.AST]) -> list[str]:
    return [
        part.value
        for node in nodes
        for part in (node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node])
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def _gsm8k(asked: Problem) -> str:
    a, b, c = asked.first, asked.second, asked.total
    return f"{a} + {b} = <<{a}+{b}={c}>>{c}.\n#### {c}"


def _messages(asked: Problem) -> list[dict[str, str]]:
    answer = f"{asked.first} + {asked.second} = {asked.total}"
    return [{"role": "user", "content": asked.question}, {"role": "assistant", "content": answer}]


def _turns(asked: Problem, is_good: bool) -> str:
    said = f"It is {asked.total}." if is_good else "I do not know."
    return f"\n\nHuman: {asked.question}\n\nAssistant: {said}"


def _pair(asked: Problem, is_good: bool) -> list[dict[str, str]]:
    said = f"It is {asked.total}." if is_good else "I do not know."
    return [{"role": "user", "content": asked.question}, {"role": "assistant", "content": said}]


def _review(asked: Problem) -> str:
    draw = random.Random(asked.number)
    words = ("a good film", "a long story", "the actors were fine", "it was dull", "I liked the music", "a weak end")
    return "This was " + ", and ".join(draw.choices(words, k=draw.randint(3, 30))) + "."


def _boxed(asked: Problem) -> str:
    return f"{asked.first} + {asked.second} = {asked.total}, so the answer is $\\boxed{{{asked.total}}}$."


Column = Callable[[Problem], Any]
_QUESTION: Column = lambda asked: asked.question  # noqa: E731
_TOTAL: Column = lambda asked: str(asked.total)  # noqa: E731
_SMALL: Column = lambda asked: asked.number % 3 + 1  # noqa: E731
_NUMBER: Column = lambda asked: asked.number  # noqa: E731

# by name of the column, the first that matches as a whole
_COLUMNS: tuple[tuple[str, Column], ...] = (
    (r"messages?|conversations?|dialog(ue)?|chat|history", _messages),
    (r"nums|numbers", lambda asked: list(asked.numbers)),
    (r"target", lambda asked: asked.target),
    (r"(num|n)_.*|.*_(count|len|length|size)", _SMALL),
    (r"reward_model", lambda asked: {"style": "rule", "ground_truth": str(asked.total)}),
    (r"extra_info", lambda asked: {"split": "train", "index": asked.number}),
    (r"(.*_)?(id|idx|index|uid)", _NUMBER),
    (r"(num|n|count|len|max|min)_.*|.*_(count|len|length|size|digits|terms)", lambda asked: 1 + asked.number % 3),
    (r"labels?|sentiment|is_.*|has_.*", lambda asked: asked.number % 2),
    (r".*(score|rating|points).*", lambda asked: float(asked.number % 5)),
    (r"level|difficulty", lambda asked: f"Level {asked.number % 5 + 1}"),
    (r"(problem_)?type|subject|category|domain|ability|topic|task(_type)?", lambda asked: "Algebra"),
    (r"(data_)?source|dataset|split", lambda asked: "gsm8k"),
    (r"input|context|system(_prompt)?", lambda asked: ""),
    (r"chosen", lambda asked: _turns(asked, True)),
    (r"rejected", lambda asked: _turns(asked, False)),
    (r"(unit_?)?tests?|test_list|test_cases", lambda asked: [f"assert f() == {asked.total}"]),
    (r"entry_point", lambda asked: "f"),
    (r"(text|review|sentence|comment|document|article|post|summary|story|passage|body).*", _review),
    (r".*(ground|gold|truth|final|expected|correct|reference|numeric|int_).*", _TOTAL),
    (r".*(question|prompt|problem|query|instruction|quiz).*|[Qq]|user", _QUESTION),
    (r"solutions?|rationale|reasoning|explanation|thinking", _boxed),
    (r".*(answer|label).*|[Aa]", _TOTAL),
    (r".*(response|completion|output|reply|assistant).*", lambda asked: f"The answer is {asked.total}."),
)
# of well known data sets, by a part of their name: their columns and those that differ from the above
_SHAPES: tuple[tuple[str, tuple[str, ...], dict[str, Column]], ...] = (
    (r"countdown", ("nums", "target"), {}),
    (r"24.?game|game.?(of.?)?24", ("numbers", "solutions", "solvable"), {
        "numbers": lambda asked: [*asked.numbers, 4], "solutions": lambda asked: ["1*2*3*4"],
        "solvable": lambda asked: True,
    }),
    (r"gsm8k", ("question", "answer"), {"answer": _gsm8k}),
    (r"math.?500|hendrycks|competition.?math|math.?lighteval|deepscaler|openr1|numina|dapo|bigmath|big-math",
     ("problem", "solution", "answer", "level", "type", "subject", "unique_id"), {}),
    (r"alpaca|dolly", ("instruction", "input", "output", "text"), {"text": _QUESTION}),
    (r"hh-?rlhf", ("chosen", "rejected"), {}),
    (r"ultrafeedback|preference|dpo", ("prompt", "chosen", "rejected", "messages", "score_chosen", "score_rejected"), {
        "chosen": lambda asked: _pair(asked, True), "rejected": lambda asked: _pair(asked, False),
    }),
    (r"imdb|rotten|sst|amazon|yelp", ("text", "label"), {}),
    (r"tldr|summar", ("prompt", "label", "post", "subreddit", "title", "summary"), {
        "label": lambda asked: "TL;DR: it was fine.", "prompt": lambda asked: f"{_review(asked)}\nTL;DR:",
        "title": lambda asked: "A day", "subreddit": lambda asked: "stories",
    }),
    (r"eli5|stack", ("title", "question", "answer", "text"), {}),
    (r"mbpp|humaneval|code", ("prompt", "text", "code", "test_list", "test", "task_id", "entry_point"), {
        "code": lambda asked: f"def f():\n    return {asked.total}", "text": _QUESTION,
    }),
)  # fmt: skip


def _value(column: str, special: dict[str, Column], writes_hashes: bool) -> Column:
    if column in special:
        return special[column]
    for pattern, made in _COLUMNS:
        if re.fullmatch(pattern, column, re.IGNORECASE):
            return _gsm8k if writes_hashes and column.lower() == "answer" else made
    return _QUESTION


def make_rows(
    name: str, asked: Mapping[str, bool], texts: Iterable[str], count: int, first: int = 0
) -> list[dict[str, Any]]:
    """Rows of the data set `name`. `asked` are names that the script looks up, `texts` its constants."""
    shape = next(
        ((columns, special) for pattern, columns, special in _SHAPES if re.search(pattern, name, re.IGNORECASE)), None
    )
    if re.search(r"chinese|zh\b|_zh|[-_]cn\b|japanese|korean|multilingual", name, re.IGNORECASE):
        shape = None  # a translation has columns of its own
    columns, special = shape if shape is not None else (tuple(asked) or ("question", "answer"), {})
    if shape is None and not any(_is_question(column) for column in columns):
        columns = (*columns, "question", "answer", "prompt", "text")
    writes_hashes = shape is None and any("####" in text for text in texts)
    makers = {
        column: _SMALL if asked.get(column) and column not in special else _value(column, special, writes_hashes)
        for column in columns
    }
    return [
        {column: made(problem(number)) for column, made in makers.items()} for number in range(first, first + count)
    ]


def _is_question(column: str) -> bool:
    return (
        re.search(r"question|prompt|problem|query|instruction|text|message|conversation|nums|chosen", column)
        is not None
    )


def question_of(row: dict[str, Any]) -> str:
    """One line of a text file."""
    texts = [value for value in row.values() if isinstance(value, str)]
    return max(texts, key=len) if texts else puzzle_question(problem(0))

"""What the rows of a batch answer: whole answers that are compared word for word, and whether an answer is right.

An answer is called right or wrong only where that is beyond doubt: two plain numbers, or two equal texts.
"""

from __future__ import annotations

import re
from collections.abc import Hashable

from assay.doctor.evidence import Batch
from assay.doctor.facts.repeats import completions
from assay.verdict import Missing

_MARKED = (  # how answers are marked, the surest first
    re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE),
    re.compile(r"####\s*([^\n]+)"),
    re.compile(r"answer\s+is:?\s*\**\$?\s*(-?[\d.,/]*\d)", re.IGNORECASE),
    re.compile(r"^\W*answer:\s*\**\$?\s*(-?[\d.,/]*\d)", re.IGNORECASE | re.MULTILINE),
)
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_NUMBER = re.compile(r"-?(?:\d+(?:,\d{3})*|\d*)(?:\.\d+)?")


def answers(batch: Batch) -> list[Hashable]:
    """One per row, equal where the answers are equal to the last token, or word for word; () or "" where it is not
    known."""
    try:
        found: list[Hashable] = [*completions(batch)]
    except Missing:
        found = []
    if any(found):
        return found
    if "completion" not in batch.texts:
        raise Missing("tokens or texts of the completions")
    return list(batch.texts["completion"])


def right_answers(batch: Batch) -> list[bool | None]:
    """Whether each row's last marked answer is the true one; None where that is not beyond doubt.

    Raises Missing where nothing says what is true, or where that differs between rows of one prompt: then it is what
    the rows answer.
    """
    truths, texts, prompts = (batch.texts.get(name) for name in ("truth", "completion", "prompt"))
    if truths is None or texts is None:
        raise Missing("truth")
    if prompts is not None and len(set(zip(prompts, truths, strict=True))) > len(set(prompts)):
        raise Missing("one truth for each prompt")
    return [is_right(text, truth) for text, truth in zip(texts, truths, strict=True)]


def is_right(text: str, truth: str) -> bool | None:
    r"""
    >>> is_right(r"so \boxed{1,200}.", "1200"), is_right("#### 7", "8"), is_right("I do not know", "8")
    (True, False, None)
    >>> is_right(r"\boxed{\frac{1}{2}}", "0.5") is None
    True
    """
    said, true = marked_answer(text), _plain(marked_answer(truth) or truth)
    if said is None or not true:
        return None
    said = _plain(said)
    if said == true:
        return True
    one, other = _number(said), _number(true)
    return None if one is None or other is None else abs(one - other) <= 1e-6 * max(abs(other), 1.0)


def marked_answer(text: str) -> str | None:
    r"""The last one that is marked as such.

    >>> marked_answer(r"\boxed{1} or rather \boxed{x^{2}}"), marked_answer("The answer is 3, not 4.")
    ('x^{2}', '3')
    """
    if (boxes := list(_BOXED.finditer(text))) and (inside := _inside(text, boxes[-1].end())) is not None:
        return inside
    for pattern in _MARKED:
        if found := pattern.findall(text):
            last: str = found[-1]
            return last
    return None


def _inside(text: str, start: int) -> str | None:
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    return None


def _plain(answer: str) -> str:
    return answer.strip().strip("$").strip().rstrip(".").removeprefix("$").strip().lower()


def _number(answer: str) -> float | None:
    if not _NUMBER.fullmatch(answer) or not any(sign.isdigit() for sign in answer):
        return None
    return float(answer.replace(",", ""))

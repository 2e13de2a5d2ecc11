r"""Whether a completion ends in the right mathematical answer: extraction here, equality by math-verify.

The answer of a completion is what its last \boxed{}, <answer> or #### holds, else what follows the last "answer is",
else the whole text if it is one expression, else the last formula or number in it. Two formulas are equal if
math-verify can show it; two words or the letters of a choice are equal if they read alike.

math-verify sets SIGALRM, so this must run on the main thread, as it does in a worker.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from assay.tasks.last_number import MINUS, NUMBER

# at the start: in the first call it would be counted as time that the first completion took
_math_verify: Any = importlib.import_module("math_verify")

ALARM_SECONDS = 3  # of each parse and each comparison; they take milliseconds unless the text is a bomb
LONGEST = 1000  # characters of an answer; beyond it nothing is a formula
DEEPEST = 40  # brackets inside brackets

_TAGGED = re.compile(r"(?is:<answer>(.*?)</answer>)|####[ \t]*([^\n]+)")  # the second as in GSM8K
_AFTER_ANSWER = re.compile(r"answer(?:\s+is\b|\s*[:=])\s*:?\s*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")
_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NAMES = r"(?:sqrt|sin|cos|tan|log|exp|frac|max|min)\b"  # words of mathematics
_WORD = re.compile(rf"(?<![\\A-Za-z])(?!{_NAMES})[A-Za-z]{{3,}}")
_GOES_ON = re.compile(  # where a sentence goes on after its answer; "or" and "and" are part of an answer
    rf"(?<![\\A-Za-z])(?!{_NAMES}|and\b)(?:[A-Za-z]{{3,}}|(?:as|at|by|in|on|of|so|is|if|to|we|it)\b)"
)
_WORD_ARGUMENT = re.compile(r"\\[A-Za-z]+\s*\{[A-Za-z]+\*?\}")  # \begin{pmatrix}, \overline{ABCD}
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit|mbox)\s*\{([^{}]*)\}")
_SPACE = r"(?:\s|~|\\[ ,;:!])*"
_UNIT = re.compile(  # words at the end of a formula: \text{ cm}^2, or apples
    rf"{_SPACE}\\(?:text|textit|mathrm|mbox)\s*\{{[^{{}}]*[A-Za-z][^{{}}]*\}}(?:\s*\^\s*\{{?[0-9]\}}?)?[.\s]*$"
    rf"|(?<=[0-9}})\]])\s+(?!{_NAMES}|or\b|and\b)[A-Za-z]{{3,}}(?:\s+[A-Za-z]{{3,}})*\.?\s*$"
)
_LABEL = re.compile(r"^\s*\\text\s*\{[^{}]*\}\s*[=:]\s*")  # \text{Area} =
_CHOICE = re.compile(r"\(?([A-Za-z])[).:]+\s")  # B) twelve
_SCIENTIFIC = re.compile(r"(?<![A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,3})(?![A-Za-z0-9])")
# powers and factorials that no alarm ends, because they are one multiplication of long numbers
_BOMB = re.compile(
    r"(?:\^|\*\*)[\s{(+-]*(?:[0-9][0-9,]{4,}|[0-9]+[\s)}]*(?:\^|\*\*|!))|[0-9]{4,}[\s)}]*!|![\s)}]*(?:!|\^|\*\*)"
)


def equal(completion: str, answer: str) -> float:
    """1 if the completion's answer equals `answer`, else 0: also if it cannot be read as a formula, or not in time.

    A reference answer that is not a formula is an error, unless the completion's is the same text.
    """
    gold = formula(_marked_answer(answer) or answer)
    if not gold:
        raise ValueError(f"the reference answer {answer[:80]!r} is empty")
    marked = _marked_answer(completion) or _after_answer(completion) or completion
    if _is_word(gold) or (len(gold) == 1 and gold.isalpha()):
        return float(_letters(marked) == _letters(gold))
    found = extract_answer(completion)
    wanted = {_without_space(gold), _without_space(bare(_marked_answer(answer) or answer))}
    if not wanted.isdisjoint({_without_space(found), _without_space(formula(marked)), _without_space(bare(marked))}):
        return 1.0
    parsed_gold = [] if _is_bomb(gold) else _parse(gold, raise_on_error=True)
    if not parsed_gold:
        raise ValueError(f"the reference answer {answer[:80]!r} is not a formula that math-verify can read")
    if not found or len(found) > max(LONGEST, 2 * len(gold)) or _is_bomb(found):
        return 0.0
    parsed = _parse(found, raise_on_error=False)
    return float(_math_verify.verify(parsed_gold, parsed, timeout_seconds=ALARM_SECONDS, raise_on_error=False))


def extract_answer(completion: str) -> str:
    r"""The answer of a completion, bare; empty if it holds none.

    >>> extract_answer(r"Perhaps \boxed{3}; no: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> extract_answer("The answer is 42, since 6 * 7 = 42.")
    '42'
    """
    marked = _marked_answer(completion)
    if marked:
        in_box = marked == _last_boxed(completion)[0]
        return formula(marked) if in_box or not _has_prose(formula(marked)) else _expression(marked)
    after = _after_answer(completion)
    if after:
        leading = formula(_GOES_ON.split(_UNIT.sub("", bare(after, words=True)), maxsplit=1)[0]).rstrip(" (,;:-")
        return leading if re.search(r"[0-9A-Za-z]", leading) else _expression(after)
    whole = formula(completion)
    return whole if not _has_prose(whole) and "\n" not in whole else _expression(completion)


def formula(text: str) -> str:
    r"""What stands in a box, bare and without its unit. What is words alone stays.

    >>> formula(r"\frac{3}{4} \text{ miles}"), formula("12 apples"), formula(r"\text{Yes}")
    ('\\frac{3}{4}', '12', 'Yes')
    """
    rest = _LABEL.sub("", _UNIT.sub("", bare(text, words=True)))
    return bare(rest if re.search(r"[0-9A-Za-z]", rest) else text)


def bare(text: str, *, words: bool = False) -> str:
    r"""The formula without what stands around it: dollars, bold, a full stop; \text{} only if not `words`."""
    text = text.replace(MINUS, "-")
    text = text if words else _TEXT_COMMAND.sub(r"\1", text)
    text = re.sub(r"\\[()\[\]]|(?<!\\)\$|\*\*(?=\s|$)|(?:^|(?<=\s))\*\*|`", "", text).strip()
    return text.rstrip(".,;:").strip()


def _marked_answer(text: str) -> str:
    r"""What the last \boxed{}, <answer> or #### holds, whichever ends last."""
    boxed, boxed_end = _last_boxed(text)
    for tagged in list(_TAGGED.finditer(text))[-1:]:
        if tagged.end() > boxed_end:
            held = tagged.group(1) or tagged.group(2) or ""
            return _last_boxed(held)[0] or held
    return boxed


def _last_boxed(text: str) -> tuple[str, int]:
    r"""What the last complete \boxed{} holds, and where it ends; ("", -1) if there is none."""
    command = "\\boxed{"
    start = text.rfind(command)
    for _ in range(8):  # a few that were cut off, not a text made of nothing else
        if start < 0:
            break
        depth = 0
        for index in range(start + len(command) - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[index], 0)
            if depth == 0:
                return text[start + len(command) : index], index + 1
        start = text.rfind(command, 0, start)
    return "", -1


def _after_answer(text: str) -> str:
    """The rest of the sentence after the last "answer is" or "answer:"."""
    places = list(_AFTER_ANSWER.finditer(text))
    return _SENTENCE_END.split(text[places[-1].end() :], maxsplit=1)[0] if places else ""


def _expression(text: str) -> str:
    """The formula or number that ends last; a number inside a formula is part of it."""
    formulas, numbers = list(_FORMULA.finditer(text)), list(NUMBER.finditer(text.replace(MINUS, "-")))
    if formulas and (not numbers or formulas[-1].end() > numbers[-1].start()):
        return formula(formulas[-1].group())
    return numbers[-1].group() if numbers else ""


def _parse(text: str, *, raise_on_error: bool) -> list[object]:
    """What math-verify makes of a formula; empty if it is none."""
    latex = _SCIENTIFIC.sub(r"\1 \\cdot 10^{\2}", text.replace("**", "^"))
    latex = re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi", latex)
    return list(
        _math_verify.parse(
            f"${latex}$", fallback_mode="no_fallback", parsing_timeout=ALARM_SECONDS, raise_on_error=raise_on_error
        )
    )


def _is_bomb(text: str) -> bool:
    """Whether it would take long to read, or to write out as a number."""
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return deepest > DEEPEST or _BOMB.search(text) is not None


def _without_space(text: str) -> str:
    return "".join(text.split())


def _is_word(text: str) -> bool:
    return (bool(re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text)) and _has_prose(text)) or text.lower() in ("no", "yes")


def _has_prose(text: str) -> bool:
    text = _WORD_ARGUMENT.sub("", text)
    return _WORD.search(text) is not None or _GOES_ON.search(text) is not None


def _letters(text: str) -> str:
    """A word or a choice as it is compared: (A), A., a and A) twelve are one."""
    choice = _CHOICE.match(text.strip())
    return choice.group(1).lower() if choice else bare(text).strip("()[]{}.,:;!?'\" \n\t").lower()

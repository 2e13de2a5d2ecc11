"""A gallery of broken rewards, each seen in real code, and what `assay reward-check` finds.

    assay reward-check examples/broken_rewards.py:contains

Below the broken ones are sound ones that look very similar.
"""

import fcntl
import json
import math
import os
import random
import re
import tempfile
import time


def none_on_junk(prompt: str, completion: str, answer: str) -> float | None:
    """REW02: the path without a return."""
    if re.search(r"\d", completion):
        return float(completion.strip() == answer)
    return None


def nan_on_junk(prompt: str, completion: str, answer: str) -> float:
    """REW02: NaN for a text without digits; one NaN is enough to turn a batch into NaN."""
    digits = re.findall(r"\d", completion)
    return float(completion.strip() == answer) if digits else math.nan


def text(prompt: str, completion: str, answer: str) -> str:
    """REW02: a text, not a number."""
    return "1.0" if completion.strip() == answer else "0.0"


def raises_on_empty(prompt: str, completion: str, answer: str) -> float:
    """REW02: an empty completion has no last word."""
    return float(completion.split()[-1] == answer)


def evaluates(prompt: str, completion: str, answer: str) -> float:
    """REW02: runs what the model wrote; 9**9**9 takes hours, and import os takes less."""
    try:
        return float(eval(completion) == eval(answer))
    except Exception:
        return 0.0


def constant(prompt: str, completion: str, answer: str) -> float:
    """REW01: a typo (`anwser`), and an except that swallows it."""
    try:
        return float(json.loads(completion)["anwser"] == answer)
    except Exception:
        return 0.0


def noisy(prompt: str, completion: str, answer: str) -> float:
    """REW08: random numbers."""
    return float(completion.strip() == answer) + 0.1 * random.random()


_seen: set[str] = set()


def only_new(prompt: str, completion: str, answer: str) -> float:
    """REW09: pays a text once; who is asked first gets it."""
    is_new = completion not in _seen
    _seen.add(completion)
    return float(is_new and completion.strip() == answer)


def ranks(completions: list[str], answers: list[str]) -> list[float]:
    """REW09: a place in the batch; how the batch is cut decides."""
    right = [float(text.strip() == answer) for text, answer in zip(completions, answers, strict=True)]
    return [sum(other <= own for other in right) / len(right) for own in right]


_place = os.path.join(tempfile.gettempdir(), f"assay-broken-reward-{os.getuid()}")
_lock = None


def locks(prompt: str, completion: str, answer: str) -> float:
    """REW10: a resource that only one process can have, and 0 for all others."""
    global _lock
    try:
        if _lock is None:
            _lock = open(_place, "w")  # noqa: SIM115
        fcntl.flock(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0.0
    return float(completion.strip() == answer)


def inverted(prompt: str, completion: str, answer: str) -> float:
    """REW03: a distance where a reward was meant."""
    return float(completion.strip() != answer)


def not_empty(prompt: str, completion: str, answer: str) -> float:
    """REW04: bool of a text is whether there is one."""
    return float(bool(completion) == bool(answer))


def swapped(prompt: str, completion: str, answer: str) -> float:
    """REW05: the two sides of startswith are swapped, and every answer starts with nothing."""
    return float(answer.startswith(completion.strip()))


def any_number(prompt: str, completion: str, answer: str) -> float:
    """REW06: pays the form of an answer, and calls it accuracy."""
    return float(re.search(r"\d", completion) is not None)


def contains(prompt: str, completion: str, answer: str) -> float:
    """REW07: pays a list of all answers."""
    return float(answer in completion)


def contains_briefly(prompt: str, completion: str, answer: str) -> float:
    """REW07: the same, at a price for length that no policy minds."""
    return float(answer in completion) - 1e-6 * len(completion)


def ends_with(prompt: str, completion: str, answer: str) -> float:
    """REW07: 113 ends with 13."""
    return float(completion.strip().endswith(answer))


def any_tags(prompt: str, completion: str, answer: str) -> float:
    """REW17: answer tags are taken for the answer."""
    return 1.0 if "</answer>" in completion else float(completion.strip() == answer)


def says_yes(prompt: str, completion: str, answer: str) -> float:
    """REW17: a list of what counts as right holds what is right for some other question."""
    return float(completion.strip().lower() in (answer, "yes", "true", "1", "final answer"))


def echoes(prompt: str, completion: str, answer: str) -> float:
    """REW17: pays who repeats the question, whatever follows."""
    return float(completion.startswith(prompt) or completion.strip() == answer)


def anagram(prompt: str, completion: str, answer: str) -> float:
    """REW17: the right characters in any order."""
    return float(sorted(completion.strip()) == sorted(answer))


def in_millions(prompt: str, completion: str, answer: str) -> float:
    """REW11."""
    return 1e6 * float(completion.strip() == answer)


def hairline(prompt: str, completion: str, answer: str) -> float:
    """ADV04: 0.01 of reward becomes an advantage of 1."""
    return 0.01 * float(completion.strip() == answer)


def longer_is_better(prompt: str, completion: str, answer: str) -> float:
    """REW13: talk outweighs truth."""
    return float(completion.strip() == answer) + 0.001 * len(completion)


def style(prompt: str, completion: str, answer: str) -> float:
    """REW16, and so REW14: a text that begins with a capital, whatever was asked; the answer is never read."""
    return float(completion[:1].isupper())


def slow(prompt: str, completion: str, answer: str) -> float:
    """REW15: 10 ms are nothing, until a step has thousands of answers."""
    time.sleep(0.01)
    return float(completion.strip() == answer)


def partial_credit(prompt: str, completion: str, answer: str) -> float:
    """Sound: a share for each character in its place, all of it only for the whole."""
    given = completion.strip()
    places = sum(one == other for one, other in zip(given, answer, strict=False)) / max(len(answer), len(given), 1)
    return 0.8 * float(given == answer) + 0.2 * places


def brief(prompt: str, completion: str, answer: str) -> float:
    """Sound: right answers get less the longer they are, and never less than wrong ones."""
    last = completion.strip().rstrip(".").split()[-1:]
    return float(last == [answer]) - 0.1 * min(len(completion) / 1000, 1.0)


def tagged(prompt: str, completion: str, answer: str) -> float:
    """Sound: only what stands in the tags counts; a bare answer is worth nothing."""
    found = re.findall(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    return float(bool(found) and found[-1].strip() == answer)


def format_share(prompt: str, completion: str, answer: str) -> float:
    """Sound: a tenth for the tags, the rest for what stands in them."""
    found = re.findall(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    return 0.1 * float(bool(found)) + 0.9 * float(bool(found) and found[-1].strip() == answer)


def exact_and_tags(prompt: str, completion: str, answer: str) -> float:
    """Sound: a tenth for the tags beside the whole for the right answer, with them or without."""
    found = re.findall(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    return 0.1 * float(bool(found)) + float((found[-1] if found else completion).strip() == answer)

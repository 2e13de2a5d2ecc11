"""Methods that the code of a published checkpoint brings (`trust_remote_code=True`), as one of a reward model.

A stand-in is of a class of transformers and has no such code. Where the script calls a method that is named after a
score, and the class has none, it is answered by a number that the texts determine.
"""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Iterable
from typing import Any

from assay.rehearsal.stage import Stage

_SCORING = re.compile(r"((get|compute|calculate|calc|predict|infer)_)?(reward|score)s?", re.IGNORECASE)


def scoring_methods(sources: Iterable[ast.Module]) -> set[str]:
    """Names of methods that the script calls and that ask for a score."""
    called = (node.func for tree in sources for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {node.attr for node in called if isinstance(node, ast.Attribute) and _SCORING.fullmatch(node.attr)}


def add_scores(stage: Stage, model: Any, names: Iterable[str]) -> None:
    for name in names:
        if hasattr(model, "state_dict") and not hasattr(model, name):
            setattr(model, name, functools.partial(score, name.endswith("s")))
            stage.replaced("weights", f"{name}() of a model's own code", "a number for each text")


def score(is_plural: bool, *given: Any, **named: Any) -> float | list[float]:
    """One number, or one for each of several conversations. What is not a text, as a tokenizer, does not count."""
    texts = [part for part in (*given, *named.values()) if isinstance(part, (str, list, tuple))]
    several = next((part for part in reversed(texts) if not isinstance(part, str)), None) if is_plural else None
    if several is None:
        return _number(texts)
    return [_number(part) for part in several]


def _number(texts: Any) -> float:
    return round(random.Random(repr(texts)).gauss(0.0, 1.0), 4)

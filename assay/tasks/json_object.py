"""JSON: write an object with given keys and values, and nothing else."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from assay.config import ConfigError
from assay.config.sections import setting
from assay.tasks.rows import STRICT_JSON
from assay.tasks.split import MadeTask, is_heldout
from assay.types import Problem, Prompt, Rollout, Score

VALUES: dict[str, tuple[str | int, ...]] = {
    "name": ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivan", "Joy"),
    "age": tuple(range(18, 68, 5)),
    "city": ("Berlin", "Cairo", "Delhi", "Lima", "London", "Madrid", "Oslo", "Paris", "Rome", "Tokyo"),
    "color": ("black", "blue", "brown", "gray", "green", "orange", "pink", "red", "white", "yellow"),
    "animal": ("bear", "cat", "cow", "dog", "duck", "fox", "goat", "horse", "owl", "pig"),
    "count": tuple(range(10)),
}
# what the components add up to for a right answer: 1
PARSES, KEYS, ALL_VALUES = 0.25, 0.25, 0.5
_MOST_OPENINGS = 100  # brackets; far more than any right answer has, far fewer than exhaust the parser's stack


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """A JSON object with given keys and values."""

    keys: int = setting(2, "keys of the object, at most 6", low=1)
    fences: bool = setting(False, "accept the object inside a Markdown fence")


@dataclass(frozen=True, slots=True)
class JsonObject(MadeTask):
    """
    >>> problem = JsonObject(JsonOptions(keys=1), seed=1).training_problem(0)
    >>> (key, value), = json.loads(problem.answer).items()
    >>> problem.text == f'Write a JSON object with "{key}" set to {json.dumps(value)}. Reply with the JSON object only.'
    True
    """

    options: JsonOptions
    seed: int

    def __post_init__(self) -> None:
        if self.options.keys > len(VALUES):
            raise ConfigError(f"task.options.keys = {self.options.keys} exceeds the {len(VALUES)} keys there are")

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        """A quarter for JSON, a quarter for exactly the keys, half for the values: each its share."""
        wanted = json.loads(prompt.answer)
        text = _strip_fence(rollout.text.strip()) if self.options.fences else rollout.text
        parsed, value = _parse(text)
        found = value if isinstance(value, dict) else {}
        right = sum(
            type(found.get(key)) is type(wanted_value) and found[key] == wanted_value
            for key, wanted_value in wanted.items()
        )
        return Score.of(
            {
                "parses": PARSES * parsed,
                "keys": KEYS * (found.keys() == wanted.keys()),
                "values": ALL_VALUES * right / len(wanted),
            }
        )

    def _draw(self, source: random.Random, name: str) -> tuple[bool, Problem]:
        wanted = {key: source.choice(VALUES[key]) for key in source.sample(list(VALUES), self.options.keys)}
        parts = [f'"{key}" set to {json.dumps(value)}' for key, value in wanted.items()]
        listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
        question = f"Write a JSON object with {listed}. Reply with the JSON object only."
        problem = Problem(f"json-{name}", question, json.dumps(wanted), ({"role": "user", "content": question},))
        return is_heldout(json.dumps(wanted, sort_keys=True)), problem


def _parse(text: str) -> tuple[bool, Any]:
    """Whether the whole text is JSON, and what it says; a repeated key, NaN and hundredfold nesting are not JSON."""
    if text.count("[") + text.count("{") > _MOST_OPENINGS:
        return False, None
    try:
        return True, STRICT_JSON.decode(text)
    except ValueError:
        return False, None


def _strip_fence(text: str) -> str:
    r"""
    >>> _strip_fence('```json\n{"a": 1}\n```')
    '{"a": 1}'
    """
    opening, newline, rest = text.partition("\n")
    if opening in ("```", "```json") and newline and rest.endswith("```"):
        return rest.removesuffix("```").strip()
    return text

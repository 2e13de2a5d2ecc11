"""Problems of the library reasoning-gym, made as they are asked for; scored by the library's own scorers.

    training_problem(12) -> Problem, whose fields say how it was made -> score(completion, fields), in a reward worker

The scorers read model text in ways that are not all harmless, so they never run in the training process. A worker
makes the problem again from its seed. Only this module imports the library, and takes a second for it.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import io
import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from reasoning_gym.factory import DATASETS

from assay.config import ConfigError, nearest, read_options, typed
from assay.config.sections import setting
from assay.tasks.last_number import last_number
from assay.tasks.reasoning_gym_refused import REFUSED
from assay.tasks.split import is_heldout
from assay.types import Problem, Prompt, Rollout

DATASET_SIZE = 1024  # items of one dataset; some families make all of them at once, word_ladder allows 20,000
TRIES_A_DATASET = 16  # items of one dataset that one problem may be chosen from
TRIES = 256  # a family that has questions of both kinds misses one of them with a probability of 1e-15
DEFAULTS = {"gsm_symbolic": {"answer": "last_number"}}  # its scorer reads the first number of a text
_OURS = ("seed", "size")  # settings of every family that are not difficulty


@dataclass(frozen=True, slots=True)
class ReasoningGymOptions:
    """What we add to the options of a family."""

    style: str = setting("chat", "chat: a question to answer; raw: text to continue", choices=("chat", "raw"))
    answer: str = setting(
        "whole",
        "what of the completion is scored: whole, its last_line, or its last_number (the default of gsm_symbolic)",
        choices=("whole", "last_line", "last_number"),
    )
    unsafe_scorer: bool = setting(False, "use a family although its scorer is known to be dangerous or wrong")


class ReasoningGym:
    """
    >>> task = ReasoningGym("chain_sum", {"max_terms": 2, "max_digits": 1, "answer": "last_number"}, seed=1)
    >>> problem = task.training_problem(0)
    >>> score(f"The sum is {problem.answer}.", problem.fields)
    1.0
    """

    own_reward: ClassVar[str] = "assay.tasks.reasoning_gym:score"

    def __init__(self, family: str, options: Mapping[str, Any], seed: int) -> None:
        known = families()
        if family not in known:
            raise ConfigError(
                f"reasoning-gym has no family {family!r}{nearest(family, known)}; `assay tasks` lists them"
            )
        options = {**DEFAULTS.get(family, {}), **options}
        own_names = [field.name for field in dataclasses.fields(ReasoningGymOptions)]
        names = [*own_names, *difficulty(family)]
        for name in options:
            if name not in names:
                raise ConfigError(f"unknown option task.options.{name} of reasoning_gym/{family}{nearest(name, names)}")
        self.options = read_options(
            ReasoningGymOptions, {name: options[name] for name in options if name in own_names}, "task.options"
        )
        if family in REFUSED and not self.options.unsafe_scorer:
            raise ConfigError(
                f"reasoning_gym/{family} is refused: {REFUSED[family]}; choose another family, or say "
                "task.options.unsafe_scorer = true"
            )
        self.family = family
        self.seed = seed
        wanted = {name: value for name, value in options.items() if name not in own_names}
        for name, value in wanted.items():
            _convert(f"task.options.{name}", value, difficulty(family)[name][0])
        self.difficulty = json.dumps(wanted, sort_keys=True)
        self.fingerprint = f"reasoning-gym {importlib.metadata.version('reasoning-gym')}"
        try:
            settings = _settings(family, self.difficulty, seed=0)
            if hasattr(settings, "validate"):  # one family has nothing to refuse
                settings.validate()
        except (AssertionError, ValueError, TypeError) as error:
            raise ConfigError(f"reasoning_gym/{family} refuses task.options {self.difficulty}: {error}") from error

    def training_problem(self, index: int) -> Problem:
        return self._problem("train", index)

    def heldout_problem(self, index: int) -> Problem:
        return self._problem("heldout", index)

    def score(self, prompt: Prompt, rollout: Rollout) -> NoReturn:
        raise RuntimeError(f"reasoning_gym/{self.family} is scored in a reward worker, by {self.own_reward}")

    def _problem(self, split: str, index: int) -> Problem:
        block, place = divmod(index, DATASET_SIZE // TRIES_A_DATASET)
        for attempt in range(TRIES):
            dataset, step = divmod(attempt, TRIES_A_DATASET)
            seed = _seed(f"{self.seed}/{split}/{block}/{dataset}")
            number = place + step * (DATASET_SIZE // TRIES_A_DATASET)
            try:
                entry = _entry(self.family, self.difficulty, seed, number)
            except (AssertionError, ValueError, IndexError, RuntimeError) as error:
                raise ConfigError(
                    f"reasoning_gym/{self.family} cannot make a problem with task.options {self.difficulty}: {error}"
                ) from error
            if is_heldout(entry["question"]) == (split == "heldout"):
                return self._problem_of(f"{self.family}-{split}-{index}", entry, seed, number)
        raise ConfigError(
            f"reasoning_gym/{self.family} with task.options {self.difficulty} has too few different questions for a "
            f"training and a held-out part: {TRIES} tries found none of the {split} part; make its options wider"
        )

    def _problem_of(self, name: str, entry: Mapping[str, Any], seed: int, number: int) -> Problem:
        question = entry["question"]
        fields = {
            "family": self.family,
            "options": self.difficulty,
            "seed": seed,
            "index": number,
            "scored": self.options.answer,
            "question_digest": _digest(question),
        }
        answer = entry["answer"] or ""  # None where many answers are right
        if self.options.style == "raw":
            return Problem(name, f"{question}\n", answer, fields=fields)
        return Problem(name, question, answer, ({"role": "user", "content": question},), fields)


def score(completion: str, fields: Mapping[str, Any]) -> float:
    """What the library gives for a completion of the problem with these fields; it may raise, and it may stall."""
    place = (fields["family"], fields["options"], fields["seed"])
    entry = _entry(*place, fields["index"])
    if _digest(entry["question"]) != fields["question_digest"]:
        raise RuntimeError(f"reasoning_gym/{fields['family']} made another question of the same seed in this process")
    return float(_dataset(*place).score_answer(scored_part(completion, fields["scored"]), entry=entry))


def scored_part(completion: str, part: str) -> str:
    r"""
    >>> [scored_part("First 3.\nThen 40 \n", part) for part in ("whole", "last_line", "last_number")]
    ['First 3.\nThen 40', 'Then 40', '40']
    """
    if part == "last_number":
        return last_number(completion)
    whole = completion.strip()
    return whole.rpartition("\n")[2].strip() if part == "last_line" else whole


def families() -> list[str]:
    """All but `composite`, which is made of others."""
    return sorted(name for name in DATASETS if name != "composite")


def summary(family: str) -> str:
    """The first line that the library says of it."""
    return inspect.cleandoc(DATASETS[family][0].__doc__ or "").partition("\n")[0]


def difficulty(family: str) -> dict[str, tuple[Any, Any]]:
    """The options of a family -> type and default."""
    kind = DATASETS[family][1]
    hints, default = get_type_hints(kind), kind()
    return {
        field.name: (_declared_type(hints[field.name], getattr(default, field.name)), getattr(default, field.name))
        for field in dataclasses.fields(kind)
        if field.name not in _OURS
    }


def _declared_type(hint: Any, default: Any) -> Any:
    """The library calls some settings whole numbers whose default is none."""
    return float if hint is int and isinstance(default, float) else hint


def _settings(family: str, options: str, seed: int) -> Any:
    known = difficulty(family)
    values = {
        name: _convert(f"task.options.{name}", value, known[name][0]) for name, value in json.loads(options).items()
    }
    return DATASETS[family][1](seed=seed, size=DATASET_SIZE, **values)


def _convert(name: str, value: Any, wanted: Any) -> Any:
    """A TOML value as the type that the library's dataclass declares."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        if value not in parts:
            raise ConfigError(f"{name} = {value!r} is not one of {', '.join(map(str, parts))}")
        return value
    if origin in (Union, types.UnionType):
        return _convert(name, value, next(part for part in parts if part is not type(None)))
    if wanted in (list, tuple) or origin in (list, tuple, collections.abc.Sequence):
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} = {value!r} must be a list, not {type(value).__name__}")
        converted = [_convert(name, part, parts[0]) if parts else part for part in value]
        return converted if list in (wanted, origin) else tuple(converted)
    if wanted not in (int, float, str, bool):
        raise ConfigError(f"{name} cannot be set in a config, only left at its default")
    return typed(name, value, wanted)


@functools.lru_cache(maxsize=64)
def _dataset(family: str, options: str, seed: int) -> Any:
    return DATASETS[family][0](config=_settings(family, options, seed))


@functools.lru_cache(maxsize=8192)  # an evaluation asks for the same ones again, and a group for one many times
def _entry(family: str, options: str, seed: int, number: int) -> Mapping[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):  # some families print while they make an item
        return types.MappingProxyType(_dataset(family, options, seed)[number])


def _seed(source: str) -> int:
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:4]) % 2**31


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]

"""Reward functions of a caller: called once a step for all completions, with a deadline, checked, weighted.

They run in a thread of their own: closures and models on a GPU work as they are, and a call that never returns is an
error instead of a silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch

from assay.config.sections import RewardConfig
from assay.rewards import Asked, OnScore
from assay.train.failure import RunFailed
from assay.train.user_checks import numbers
from assay.types import Score

RewardFunction = Callable[..., Any]
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RewardFunctions:
    """By name, each with its weight. One function alone is called reward_fn in every message."""

    functions: Mapping[str, RewardFunction]
    weights: Mapping[str, float]
    settings: RewardConfig

    def check_columns(self, columns: Sequence[str]) -> None:
        """A column that no function asks for is more likely a slip than a wish; one that is asked for must be there."""
        for name, function in self.functions.items():
            for wanted in _columns_needed(function):
                if wanted not in columns:
                    raise ValueError(f"{name} asks for {wanted!r}, which stands beside no prompt; add the column")
        for column in columns:
            if not any(_takes(function, column) for function in self.functions.values()):
                raise ValueError(
                    f"no reward function takes {column!r}; add it to the function's arguments, or leave the column out"
                )

    def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, list[Any]], device: torch.device
    ) -> list[Score]:
        """One score for each completion; without a number where a function returned None."""
        by_name = {
            name: self._rewards(name, function, prompts, completions, columns, device)
            for name, function in self.functions.items()
        }
        scores = []
        for values in zip(*by_name.values(), strict=True):
            known = {name: value for name, value in zip(by_name, values, strict=True) if value is not None}
            if len(known) < len(values):
                scores.append(Score.failed("returned None"))
            else:
                scores.append(Score.of(known, self.weights))
        return scores

    def _rewards(
        self,
        name: str,
        function: RewardFunction,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, list[Any]],
        device: torch.device,
    ) -> list[float | None]:
        asked = {column: values for column, values in columns.items() if _takes(function, column)}
        rewards = numbers(self._call(name, function, (prompts, completions), asked, device), name)
        if len(rewards) != len(completions):
            raise ValueError(
                f"{name} returned {len(rewards)} rewards for {len(completions)} completions; return one for each, in "
                "their order"
            )
        unscored = [row for row, reward in enumerate(rewards) if reward is None]
        if len(unscored) > self.settings.max_failed * len(rewards):
            raise RunFailed(
                f"{name} returned None for {len(unscored)} of {len(rewards)} completions (the first of them is "
                f"{unscored[0]}), more than {self.settings.max_failed:.0%}; repair it, or give a bad answer a number"
            )
        return rewards

    def _call(
        self,
        name: str,
        function: RewardFunction,
        rows: tuple[Sequence[Any], Sequence[Any]],
        asked: Mapping[str, list[Any]],
        device: torch.device,
    ) -> Any:
        future: Future[Any] = Future()

        def call() -> None:
            try:
                if device.type == "cuda":
                    torch.cuda.set_device(device)  # a new thread would start on GPU 0
                future.set_result(function(*rows, **asked))
            except BaseException as error:  # whatever it is, it is raised where the trainer waits
                future.set_exception(error)

        Thread(target=call, name=name, daemon=True).start()
        wait([future], timeout=self.settings.timeout)
        if not future.done():
            raise TimeoutError(
                f"{name} did not return within reward_timeout = {self.settings.timeout:g} seconds for {len(rows[1])} "
                "completions and is left behind in its thread; find out where it waits, or raise reward_timeout"
            )
        error = future.exception()
        if error is not None:
            error.add_note(f"raised by {name}, called for {len(rows[1])} completions; no update was made")
        return future.result()


def reward_functions(given: Any, weights: Sequence[float] | None, settings: RewardConfig) -> RewardFunctions:
    """`given` is one function, or a list of them, each with its weight.

    >>> def right(prompts, completions): ...
    >>> def short(prompts, completions): ...
    >>> reward_functions([right, short], [1.0, 0.1], RewardConfig()).weights
    {'right': 1.0, 'short': 0.1}
    """
    several = list(given) if isinstance(given, list | tuple) else [given]
    for function in several:
        if not callable(function):
            raise TypeError(f"reward_fn is a {type(function).__name__}; pass a function of (prompts, completions)")
        if not _takes_two(function):
            raise TypeError(
                f"{_name(function)}{inspect.signature(function)} cannot be called with (prompts, completions); take "
                "these two first, in this order"
            )
    if not several:
        raise TypeError("reward_fn is an empty list; pass a function of (prompts, completions)")
    if weights is not None and len(weights) != len(several):
        raise ValueError(f"reward_weights holds {len(weights)} weights for {len(several)} reward functions")
    if len(several) == 1:
        names = ["reward_fn"]
    else:
        names = [_name(function) for function in several]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two reward functions are called {twice[0]!r}; give each a name of its own")
    weighted = dict(zip(names, weights if weights is not None else [1.0] * len(names), strict=True))
    return RewardFunctions(dict(zip(names, several, strict=True)), weighted, settings)


def _name(function: RewardFunction) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _takes_two(function: RewardFunction) -> bool:
    """Whether prompts and completions can be handed to it, by position."""
    positional = [parameter for parameter in _parameters(function) or () if parameter.kind in _BY_POSITION]
    is_open = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in positional)
    return len(positional) > 1 or is_open or _parameters(function) is None


def _columns_needed(function: RewardFunction) -> list[str]:
    """Arguments without a default behind prompts and completions."""
    parameters = _parameters(function) or ()
    named = [parameter for parameter in parameters if parameter.kind not in _OPEN]
    behind = [part for number, part in enumerate(named) if number > 1 or part.kind is part.KEYWORD_ONLY]
    return [parameter.name for parameter in behind if parameter.default is parameter.empty]


def _parameters(function: RewardFunction) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        return None


def _takes(function: RewardFunction, column: str) -> bool:
    return any(
        parameter.kind is parameter.VAR_KEYWORD
        or (parameter.name == column and parameter.kind is not parameter.POSITIONAL_ONLY)
        for parameter in _parameters(function) or ()
    )


@dataclass(frozen=True, slots=True)
class CallerReward:
    """A Reward of the loop: the functions get prompts and completions as the caller knows them."""

    functions: RewardFunctions
    has_tokenizer: bool
    device: torch.device

    def score(self, pairs: Sequence[Asked], on_score: OnScore) -> list[Score]:
        prompts = [prompt.fields["prompt"] for prompt, _ in pairs]
        completions = [rollout.text if self.has_tokenizer else list(rollout.tokens) for _, rollout in pairs]
        names = [name for name in pairs[0][0].fields if name != "prompt"] if pairs else []
        columns = {name: [prompt.fields[name] for prompt, _ in pairs] for name in names}
        return self.functions.score(prompts, completions, columns, self.device)

    def close(self) -> None:
        pass

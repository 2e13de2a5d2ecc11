"""How a reward function is called: by the names of its parameters, in the worker process.

A function asks for any of prompt, completion, answer, tokens, id, truncated, fields, or for a key of `fields`.
`**kwargs` gets all of them. Three required parameters of any name are prompt, completion and answer. A first parameter
in the plural (completions, prompts, answers, ids) makes it a batch function: it gets lists and returns one value per
completion. `async def` is awaited; the calls of one group then run side by side.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.grpo import REWARD_LIMIT
from assay.machine.secrets import without_secrets
from assay.rewards.failures import WrongUse, describe, reason_of

if TYPE_CHECKING:
    import asyncio

NAMES = ("prompt", "completion", "answer", "tokens", "id", "truncated", "fields")
PLURALS = {"prompts": "prompt", "completions": "completion", "answers": "answer", "ids": "id"}
POSITIONAL = ("prompt", "completion", "answer")  # what three parameters of any name get
REPLY_LENGTH = 1_000_000  # characters per completion; a longer reply would only fill the records

ToScore = Mapping[str, Any]  # one completion to be scored: a value for each of NAMES
Result = dict[
    str, Any
]  # {"components": {name: number}}, with process rewards {"steps": [number]} too; or {"error": ..., "trace": ...}


@dataclass(frozen=True, slots=True)
class LoadedReward:
    """A loaded function and what its signature says about how it wants to be called."""

    function: Callable[..., object]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    positional_only: tuple[str, ...]  # of both kinds, in order
    takes_all: bool  # **kwargs
    is_positional: bool  # three required parameters, none of them out of its place
    is_batched: bool
    is_async: bool
    fixed_arguments: Mapping[str, Any]  # arguments that are the same in every call

    @property
    def unknown(self) -> tuple[str, ...]:
        """Required parameters that only a key of `fields` can fill."""
        if self.is_positional:
            return ()
        known = {*NAMES, *self.fixed_arguments, *(PLURALS if self.is_batched else ())}
        return tuple(name for name in self.required if name not in known)

    def results(self, samples: Sequence[ToScore], *, timeout: float, separator: str) -> list[Result]:
        """One result per sample. Whatever the function does, it is an error with a reason, never a number."""
        if self.is_batched:
            return self._batch(samples, separator)
        if self.is_async:
            return _runner().run(self._side_by_side(samples, timeout, separator))
        return [self._single(sample, separator) for sample in samples]

    def _single(self, sample: ToScore, separator: str) -> Result:
        try:
            return _result(self._call({**sample["fields"], **sample}), sample, separator)
        except BaseException as error:  # the boundary to user code: the reason travels as a failed Score
            return describe(error)

    async def _side_by_side(self, samples: Sequence[ToScore], timeout: float, separator: str) -> list[Result]:
        import asyncio

        async def score(sample: ToScore) -> Result:
            try:
                args, kwargs = self._arguments({**sample["fields"], **sample})
                call: Any = self.function(*args, **kwargs)
                task = asyncio.ensure_future(_contain(call))
                done, _ = await asyncio.wait([task], timeout=timeout)
                if not done:
                    task.cancel()  # and not waited for: it may refuse
                    raise WrongUse(f"took longer than {timeout:g} s")
                return _result(task.result(), sample, separator)
            except BaseException as error:  # the boundary to user code
                return describe(error)

        return list(await asyncio.gather(*map(score, samples)))

    def _batch(self, samples: Sequence[ToScore], separator: str) -> list[Result]:
        columns: dict[str, Any] = {key: [sample["fields"].get(key) for sample in samples] for key in _keys(samples)}
        columns |= {name: [sample[name] for sample in samples] for name in NAMES}
        columns |= {plural: columns[name] for plural, name in PLURALS.items()}
        try:
            values = plain(self._call(columns))
            if not isinstance(values, list | tuple):
                raise WrongUse(f"returned a {type(values).__name__}, not a list of one value per completion")
            if len(values) != len(samples):
                raise WrongUse(f"returned {len(values)} values for {len(samples)} completions")
            return [_result(value, sample, separator) for value, sample in zip(values, samples, strict=True)]
        except BaseException as error:  # the boundary to user code
            return [describe(error)] * len(samples)

    def _call(self, available: Mapping[str, Any]) -> object:
        args, kwargs = self._arguments(available)
        value = self.function(*args, **kwargs)
        return _runner().run(_await(value)) if inspect.isawaitable(value) else value

    def _arguments(self, available: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        available = {**available, **self.fixed_arguments}
        missing = [name for name in self.required if name not in available]
        if missing and self.is_positional:
            return [available[name] for name in POSITIONAL], {}
        if missing:
            raise WrongUse(f"asks for {missing[0]!r}, which is not a field of this problem")
        args: list[Any] = []
        for name in self.positional_only:
            if name not in available:  # and so has a default, as have all that follow
                break
            args.append(available[name])
        wanted = available if self.takes_all else (*self.required, *self.optional)
        names = [name for name in wanted if name in available and name not in self.positional_only]
        return args, {name: available[name] for name in names}


def read_signature(function: Callable[..., object], fixed_arguments: Mapping[str, Any]) -> LoadedReward:
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p for p in named if p.default is p.empty and p.name not in fixed_arguments]
    in_place = all(p.name not in NAMES or p.name == place for p, place in zip(required, POSITIONAL, strict=False))
    is_batched = bool(named) and named[0].name in PLURALS
    is_positional = len(required) == 3 and in_place and all(p.kind is not p.KEYWORD_ONLY for p in required)
    return LoadedReward(
        function=function,
        required=tuple(p.name for p in required),
        optional=tuple(p.name for p in named if p not in required),
        positional_only=tuple(p.name for p in named if p.kind is p.POSITIONAL_ONLY),
        takes_all=any(p.kind is p.VAR_KEYWORD for p in parameters),
        is_positional=is_positional and not is_batched,
        is_batched=is_batched,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__),
        fixed_arguments=fixed_arguments,
    )


def plain(value: object) -> Any:
    """numpy's and torch's numbers and arrays as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def check_value(value: object, steps: Sequence[str]) -> Result:
    """What a reward function returned for an answer of these steps, or why it cannot be used.

    >>> check_value(0.5, ["a"]), check_value(None, ["a"]), check_value("1", ["a"])
    ({'components': {'': 0.5}}, {'error': 'returned None'}, {'error': "returned the text '1', not a number"})
    >>> check_value([0.5, 1.0], ["a", "b"])
    {'components': {'': 1.5}, 'steps': [0.5, 1.0]}
    """
    value = plain(value)
    if isinstance(value, list | tuple):
        if len(value) != len(steps):
            return {"error": f"returned {len(value)} step rewards for an answer of {len(steps)} steps"}
        numbers = _numbers({f"step {index + 1}": number for index, number in enumerate(value)}, named=True)
        if isinstance(numbers, str):
            return {"error": numbers}
        return {"components": {"": sum(numbers.values())}, "steps": list(numbers.values())}
    if isinstance(value, Mapping) and not value:
        return {"error": "returned an empty dict"}
    if isinstance(value, Mapping) and "" in map(str, value):
        return {"error": "returned a number without a name"}
    numbers = _numbers(value, named=True) if isinstance(value, Mapping) else _numbers({"": value}, named=False)
    return {"error": numbers} if isinstance(numbers, str) else {"components": numbers}


def _numbers(values: Mapping[Any, Any], *, named: bool) -> dict[str, float] | str:
    """The values as finite numbers, or the reason why one is not."""
    numbers: dict[str, float] = {}
    for key, value in values.items():
        name = _component_name(str(key))
        where = f" as {name[:40]!r}" if named else ""
        if name in numbers:
            return f"returned two numbers that are both named {name[:40]!r}"
        number = plain(value)
        if number is None:
            return f"returned None{where}"
        if isinstance(number, str | bytes | bytearray):
            quoted = repr(without_secrets(number)[:40]) if isinstance(number, str) else without_secrets(repr(number))
            return f"returned the text {quoted[:60]}{where}, not a number"
        try:
            numbers[name] = float(number)
        except (TypeError, ValueError):
            return f"returned a {type(number).__name__}{where}, not a number"
        except OverflowError:
            return f"returned a number{where} that no float can hold"
        if not math.isfinite(numbers[name]):
            return f"returned {numbers[name]}{where}"
    for total in (*numbers.values(), sum(numbers.values())):
        if not abs(total) <= REWARD_LIMIT:
            return f"returned {total:g}, and a reward beyond {REWARD_LIMIT:g} cannot be normalised"
    return numbers


@functools.lru_cache(maxsize=1024)  # the same few names come with every completion
def _component_name(name: str) -> str:
    return without_secrets(name)


def _result(value: object, sample: ToScore, separator: str) -> Result:
    result = check_value(value, sample["completion"].split(separator))
    length = len(json.dumps(result))
    if length > REPLY_LENGTH:
        return {"error": f"returned components that take {length} characters to write; {REPLY_LENGTH} are allowed"}
    return result


def _keys(samples: Sequence[ToScore]) -> list[str]:
    return list(dict.fromkeys(key for sample in samples for key in sample["fields"]))


@functools.cache
def _runner() -> asyncio.Runner:
    """One event loop for the life of the process, so that what a function opened in one call works in the next."""
    import asyncio

    return asyncio.Runner()


async def _contain(call: Awaitable[object]) -> object:
    """An event loop lets SystemExit and KeyboardInterrupt of one task end all the others; here they end one call."""
    try:
        return await call
    except (SystemExit, KeyboardInterrupt) as error:
        raise WrongUse(reason_of(error)) from error


async def _await(value: Awaitable[object]) -> object:
    return await value

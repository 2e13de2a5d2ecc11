"""How a function is called, and what its return value is worth."""

import inspect
import math
import os
import sys

import numpy
import pytest

from assay.rewards.call import check_value, read_signature
from assay.rewards.failures import WrongUse, reason_of
from assay.rewards.modules import load_functions

SAMPLE = {
    "prompt": "31>",
    "completion": "13",
    "answer": "13?",
    "tokens": [1, 3],
    "id": "a",
    "truncated": False,
    "fields": {"level": 3, "answer": "hidden"},
}


def result(function, *samples, given=None, separator="\n"):
    called = read_signature(function, given or {})
    results = called.results(samples or [SAMPLE], timeout=5.0, separator=separator)
    return results[0] if not samples else results


def seen(function, **settings):
    """What a function that returns True was called with."""
    calls = []

    class Spy:
        def __call__(self, *args, **kwargs):
            calls.append((args, kwargs))
            return True

    spy = Spy()
    spy.__signature__ = inspect.signature(function)
    outcome = result(spy, **settings)
    return calls[0] if calls else outcome


def test_arguments_are_given_by_name():
    assert seen(lambda completion, tokens, level: 0) == ((), {"completion": "13", "tokens": [1, 3], "level": 3})
    assert seen(lambda *, prompt, truncated=True, other=5: 0) == ((), {"prompt": "31>", "truncated": False})
    assert seen(lambda answer, fields: 0)[1] == {"answer": "13?", "fields": {"level": 3, "answer": "hidden"}}
    assert seen(lambda completion, /, level: 0) == (("13",), {"level": 3})
    assert seen(lambda completion, pattern: 0, given={"pattern": "x"})[1] == {"completion": "13", "pattern": "x"}


def test_kwargs_get_everything():
    assert seen(lambda completion, **kwargs: 0) == ((), {**SAMPLE, "level": 3})


def test_three_parameters_of_any_name_are_prompt_completion_and_answer():
    assert seen(lambda a, b, c: 0) == (("31>", "13", "13?"), {})
    assert seen(lambda prompt, completion, gold: 0) == (("31>", "13", "13?"), {})
    assert seen(lambda question, completion, answer, extra=1: 0) == (("31>", "13", "13?"), {})
    assert seen(lambda answer, level, prompt: 0)[1] == {"answer": "13?", "level": 3, "prompt": "31>"}


@pytest.mark.parametrize("function", [lambda completion, gold: 0, lambda completion, answer, gold: 0])
def test_a_parameter_that_nothing_fills_is_named(function):
    assert read_signature(function, {}).unknown == ("gold",)
    assert result(function) == {"error": "asks for 'gold', which is not a field of this problem"}


def test_known_parameters_and_positional_ones_are_not_unknown():
    assert read_signature(lambda a, b, c: 0, {}).unknown == ()
    assert read_signature(lambda completion, x=1, **rest: 0, {}).unknown == ()
    assert read_signature(lambda completion, pattern: 0, {"pattern": ""}).unknown == ()
    assert read_signature(lambda completions, answers, gold: 0, {}).unknown == ("gold",)


def test_a_plural_first_parameter_gets_lists():
    samples = [SAMPLE, {**SAMPLE, "completion": "31", "tokens": [3, 1]}]
    kept = {}

    def score(completions, prompts, answer, level, **kwargs):
        kept.update(completions=completions, prompts=prompts, answer=answer, level=level, **kwargs)
        return [1.0, {"a": 2.0}]

    assert result(score, *samples) == [{"components": {"": 1.0}}, {"components": {"a": 2.0}}]
    assert kept["completions"] == ["13", "31"]
    assert (kept["prompts"], kept["answer"], kept["level"]) == (["31>"] * 2, ["13?"] * 2, [3, 3])
    assert (kept["tokens"], kept["ids"], kept["answers"]) == ([[1, 3], [3, 1]], ["a"] * 2, ["13?"] * 2)


def test_a_batch_that_does_not_return_a_value_a_completion_fails_as_a_whole():
    short = {"error": "returned 1 values for 2 completions"}
    assert result(lambda completions: [1.0], SAMPLE, SAMPLE) == [short, short]
    number = {"error": "returned a float, not a list of one value per completion"}
    assert result(lambda completions: 1.0, SAMPLE, SAMPLE) == [number, number]
    assert result(lambda completions: [1.0, None], SAMPLE, SAMPLE) == [
        {"components": {"": 1.0}},
        {"error": "returned None"},
    ]
    assert result(lambda completions: numpy.array([1, 2]), SAMPLE, SAMPLE)[1] == {"components": {"": 2.0}}


def test_async_functions_are_awaited():
    async def single(completion):
        return 0.5

    async def batch(completions):
        return [0.25] * len(completions)

    assert result(single, SAMPLE, SAMPLE) == [{"components": {"": 0.5}}] * 2
    assert result(batch, SAMPLE, SAMPLE) == [{"components": {"": 0.25}}] * 2
    assert result(lambda completion: single(completion)) == {"components": {"": 0.5}}


@pytest.mark.parametrize("number", [2, 2.0, numpy.float32(2), numpy.int64(2), numpy.array(2.0)])
def test_any_kind_of_number_is_a_score(number):
    assert check_value(number, ["a"]) == {"components": {"": 2.0}}
    assert check_value({"x": number}, ["a"]) == {"components": {"x": 2.0}}
    assert check_value([number], ["a"]) == {"components": {"": 2.0}, "steps": [2.0]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "returned nan"),
        (-math.inf, "returned -inf"),
        ("0.5", "returned the text '0.5', not a number"),
        (b"0.5", "returned the text b'0.5', not a number"),
        (1j, "returned a complex, not a number"),
        ({}, "returned an empty dict"),
        ({"": 1.0}, "returned a number without a name"),
        ({"exact": None}, "returned None as 'exact'"),
        ({"exact": [1.0]}, "returned a list as 'exact', not a number"),
        ({"a": 1e16, "b": -1e16}, "returned 1e+16, and a reward beyond 1e+15 cannot be normalised"),
        ({"a": 9e14, "b": 9e14}, "returned 1.8e+15, and a reward beyond 1e+15 cannot be normalised"),
        ([1.0], "returned 1 step rewards for an answer of 2 steps"),
        ((1.0, 2.0, 3.0), "returned 3 step rewards for an answer of 2 steps"),
        ([1.0, None], "returned None as 'step 2'"),
    ],
)
def test_anything_else_is_a_failure_with_its_reason(value, reason):
    assert check_value(value, ["a", "b"]) == {"error": reason}


def test_a_list_is_one_reward_a_step_of_the_completion():
    sample = {**SAMPLE, "completion": "a;b;"}

    def score(completion):
        return [len(step) for step in completion.split(";")]

    assert result(score, sample, separator=";") == [{"components": {"": 2.0}, "steps": [1.0, 1.0, 0.0]}]
    assert result(score, sample) == [{"error": "returned 3 step rewards for an answer of 1 steps"}]


def test_two_names_that_read_alike_are_refused():
    assert check_value({1: 3.0, "1": 4.0}, ["a"]) == {"error": "returned two numbers that are both named '1'"}


@pytest.mark.parametrize("position", [0, 470, 490, 3000])
def test_no_part_of_a_secret_is_left_by_the_cut(monkeypatch, position):
    key = "sk-0123456789abcdef"
    monkeypatch.setenv("SOME_API_KEY", key)
    for reason in (reason_of(ValueError("x" * position + key)), reason_of(WrongUse("x" * position + key))):
        assert len(reason) <= 500
        assert "sk-0" not in reason
    assert "sk-" not in check_value("x" * 36 + key, ["a"])["error"]
    assert "sk-" not in check_value(b"x" * 36 + key.encode(), ["a"])["error"]


def test_a_file_that_was_changed_within_a_second_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "reward.py"
    given = []
    for number in (1, 2):
        file.write_text(f"def score():\n    return {number}\n")
        os.utime(file, (1_700_000_000, 1_700_000_000))
        given.append(next(load_functions([f"{file}:score"]))())
    assert given == [1, 2]

"""A reward that fails says where in the user's file, by which calls, on which prompt and completion."""

import json
import re

import pytest
from rewards.asking import asked, body, score_all

from assay.config import ConfigError
from assay.rewards.failures import describe, failure_block, failure_facts, reason_of
from assay.types import Failure, Prompt, Rollout, Score, StopReason

KEY = "sk-0123456789abcdef"
SOURCE = """import json
def parse(text):
    return json.loads(text)
def score(completion, answer):
    if completion == "deep": return score(completion, answer)
    if completion == "none": return None
    if completion == "cause":
        try: parse("{")
        except ValueError as error: raise KeyError("unit") from error
    return float(parse(completion))
"""


def one_failure(rewards, text, source=SOURCE, **settings):
    (score,) = score_all(rewards(source, **settings), asked(text))
    assert score.reward is None
    return score


def line_of(words):
    return 2 + [words in line for line in SOURCE.splitlines()].index(True)  # the fixture puts a line in front


def test_the_place_is_the_innermost_line_of_the_users_own_code(rewards, tmp_path):
    failure = one_failure(rewards, "{").failure
    assert failure.place == f"{tmp_path / 'reward.py'}:{line_of('json.loads')}"
    assert failure.exception.startswith("JSONDecodeError: Expecting property name")
    file = tmp_path / "reward.py"
    assert failure.frames[:2] == (
        f"{file}:{line_of('float(parse')} in score: return float(parse(completion))",
        f"{file}:{line_of('json.loads')} in parse: return json.loads(text)",
    )
    assert all("json" in frame for frame in failure.frames[2:])  # the library, and nothing of ours
    assert not [frame for frame in failure.frames if "assay" in frame.replace(str(tmp_path), "")]


def test_what_is_not_raised_is_placed_where_the_function_begins(rewards, tmp_path):
    failure = one_failure(rewards, "none").failure
    assert failure == Failure(place=f"{tmp_path / 'reward.py'}:{line_of('def score')}")
    hung = one_failure(rewards, "1", body("time.sleep(600)"), timeout=0.3)
    assert (hung.failure.place, hung.failure.exception) == (f"{tmp_path / 'reward.py'}:2", "")


def test_a_long_traceback_is_cut_in_the_middle_and_causes_are_named(rewards):
    deep = one_failure(rewards, "deep").failure.frames
    assert len(deep) == 9
    assert re.fullmatch(r"\.\.\. \d+ more calls", deep[2])
    cause = one_failure(rewards, "cause").failure
    assert cause.exception == "KeyError: 'unit'"
    assert cause.frames[-1].startswith("caused by JSONDecodeError: Expecting property name")


@pytest.mark.parametrize(
    ("source", "completions"),
    [
        ("async def score(completion):\n    await asyncio.sleep(0)\n    raise ValueError('late')\n", 1),
        ("def score(completions):\n    raise ValueError('all')\n", 2),
        ("class Score:\n    def __call__(self, completion): raise ValueError('object')\nscore = Score()\n", 1),
    ],
)
def test_every_form_of_function_has_its_place(rewards, tmp_path, source, completions):
    scores = score_all(rewards(source), asked("1", "2"))
    line = 1 + next(n for n, text in enumerate(source.splitlines(), 1) if "raise" in text)
    for score in scores:
        assert score.failure.place == f"{tmp_path / 'reward.py'}:{line}"
        assert len(score.failure.frames) == 1
        assert score.failure.completions == completions


def test_the_lines_for_a_terminal_are_short_escaped_and_name_prompt_and_completion():
    prompt = Prompt("rows-7", "2 + 2?\x1b[2J", (1,), "4")
    rollout = Rollout("rows-7", (1,), (0.0,), StopReason.EOS, 0, "\u202e\ud800" + "9" * 5000)
    failure = Failure("reward.py:3", "ValueError: a\nb\x07", ("reward.py:3 in score: x",), "line\n" * 500, 4)
    score = Score.failed("score: raised ValueError: a\nb\x07", failure)
    facts = failure_facts(prompt, rollout, score)
    lines = failure_block(facts)
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 600
    assert lines[0] == "reward.py:3: ValueError: a\\nb\\x07"
    assert lines[1:3] == ["traceback, the last call last:", "  reward.py:3 in score: x"]
    assert lines[3] == "prompt rows-7: '2 + 2?\\x1b[2J'"
    assert lines[4].startswith("completion (one of 4 in the call): '\\u202e\\ud8009999")
    assert "[... 4,702 characters ...]" in lines[4]
    assert len(lines) < 30
    json.dumps(facts)
    bare = failure_block(failure_facts(prompt, rollout, Score.failed("judge: no mark")))
    assert bare[0] == "judge: no mark"


def test_secrets_are_in_no_part_of_it(rewards, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", KEY)
    source = body(
        f"key = os.environ['SOME_API_KEY']; print(key); {KEY.replace('-', '_')} = 1  # {KEY}\n"
        f"    assert completion == 'no', key  # {KEY}"
    )
    score = one_failure(rewards, "1", source)
    assert "[value of SOME_API_KEY]" in score.failure.frames[0]
    assert "[value of SOME_API_KEY]" in score.failure.printed
    assert KEY not in f"{score}"
    named = score_all(rewards(body("return {os.environ['SOME_API_KEY']: 1.0}")), asked("1"))
    assert named[0].components == {"[value of SOME_API_KEY]": 1.0}


def test_a_function_of_ours_has_no_place(rewards):
    (score,) = score_all(rewards(functions=["last_number"]), asked("1", answer="x"))
    assert score.error.startswith("last_number: raised ValueError: the answer 'x' is not one number")
    assert (score.failure.place, score.failure.frames) == ("", ())


def test_exceptions_that_fail_at_everything_are_described_all_the_same():
    class Odd(BaseException):
        def __str__(self):
            raise SystemExit(1)

        def __eq__(self, other):
            raise RuntimeError

        __hash__ = None

    one, other = Odd(), Odd()
    one.__cause__, other.__cause__ = other, one  # a circle
    assert reason_of(one) == "raised Odd: (its text cannot be made)"
    assert describe(one)["trace"]["frames"] == ["caused by Odd: (its text cannot be made)"]
    assert len(reason_of(ValueError("x" * 10_000_000))) == 500


@pytest.mark.parametrize(
    ("source", "words", "note"),
    [
        ("def parse(:\n", r"SyntaxError: .* \(at .*reward\.py:2\)", None),
        ("import math\nmath.no_such\n", r"AttributeError: .* \(at .*reward\.py:3\)", "reward.py:3 in <module>: math."),
        ("print('before the end')\nos._exit(4)\n", "its process exited with 4", "  before the end"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_refused_with_its_line_and_what_it_printed(rewards, source, words, note):
    with pytest.raises(ConfigError, match=f"could not be loaded: {words}") as caught:
        rewards(source)
    notes = getattr(caught.value, "__notes__", [])
    assert note is None or any(note in line for line in notes)
    assert not [line for line in notes if "assay" in line.lower() and "reward.py" not in line]

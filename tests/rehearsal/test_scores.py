"""Rewards that differ, and lengths that are cut, by small changes to the script's code."""

import ast
import builtins

import pytest

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins import lengths, scores


@pytest.fixture
def stage(tmp_path):
    return Stage(script=tmp_path / "script.py", folder=tmp_path, home=tmp_path, most_tokens=24)


def run(text, change):
    names = {}
    tree = ast.fix_missing_locations(change.visit(ast.parse(text)))
    exec(compile(tree, "script.py", "exec"), names)
    return names


REWARD = """
def reward(text, gold):
    return {value}

def group_rewards(texts):
    return [0.0 for _ in texts]
"""


def scored(stage, value, monkeypatch):
    monkeypatch.setattr(builtins, scores._HOOK, scores.Scores(stage).scored, raising=False)
    return run(REWARD.format(value=value), scores._Watched())


def test_rewards_that_differ_by_themselves_are_left_alone(stage, monkeypatch):
    names = scored(stage, "float(text == gold)", monkeypatch)
    given = [names["reward"](str(number), "7") for number in range(40)]
    assert given == [float(number == 7) for number in range(40)]
    assert names["group_rewards"](["a", "b"]) == [0.0, 0.0]


def test_rewards_that_never_differ_are_changed_for_half_of_the_answers_and_reported(stage, monkeypatch):
    names = scored(stage, "0.0", monkeypatch)
    first = [names["reward"](f"answer {number}", "7") for number in range(7)]
    assert first == [0.0] * 7  # it may still begin to differ
    later = [names["reward"](f"answer {number}", "7") for number in range(200)]
    assert set(later) == {0.0, 1.0}
    assert 0.35 < sum(later) / len(later) < 0.65
    assert later[5] == names["reward"]("answer 5", "7")
    assert [made.kind for made in stage.replacements] == ["rewards"]
    assert "reward()" in stage.replacements[0].what


def test_a_group_whose_rewards_are_equal_gets_rewards_by_text(stage, monkeypatch):
    names = scored(stage, "0.0", monkeypatch)
    texts = [f"text {number}" for number in range(16)]
    assert names["group_rewards"](texts) == [0.0] * 16  # another function may differ
    given = names["group_rewards"](texts)
    assert set(given) == {0.0, 1.0}
    assert names["group_rewards"](texts[::-1]) == given[::-1]


NESTED = """
class Judge:
    def reward(self, text):
        return 0.0

def reward(judge, text):
    return judge.reward(text)
"""


def test_a_function_that_passes_changed_rewards_on_does_not_end_the_change(stage, monkeypatch):
    monkeypatch.setattr(builtins, scores._HOOK, scores.Scores(stage).scored, raising=False)
    names = run(NESTED, scores._Watched())
    judge = names["Judge"]()
    given = [names["reward"](judge, f"answer {number}") for number in range(200)]
    assert len(set(given[:7])) == 1
    assert len(set(given[150:])) > 1
    assert len(set(given[190:])) > 1


def test_an_error_of_the_script_stands_in_its_own_line(stage, monkeypatch):
    names = scored(stage, "text / 2", monkeypatch)
    with pytest.raises(TypeError) as caught:
        names["reward"]("a", "b")
    assert caught.traceback[-1].lineno + 1 == 3
    assert caught.traceback[-1].name == "reward"


LENGTHS = """
max_new_tokens = 512
max_prompt_length = 512
settings = {"max_completion_length": 300, "max_length": 900}
def sample(prompt, max_gen_len=256, *, temperature=1.0, gen_len: int = 8):
    return max_gen_len, gen_len
result = dict(max_new_tokens=1024)
"""


def test_lengths_of_completions_are_cut_and_other_numbers_stay(stage):
    names = run(LENGTHS, lengths._Shorter(stage))
    assert (names["max_new_tokens"], names["max_prompt_length"]) == (24, 512)
    assert names["settings"] == {"max_completion_length": 24, "max_length": 900}
    assert names["sample"]("a") == (24, 8)
    assert names["result"] == {"max_new_tokens": 24}
    assert {made.what for made in stage.replacements} == {
        "max_new_tokens = 512", "max_completion_length = 300", "max_gen_len = 256", "max_new_tokens = 1024",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["max_new_tokens", "--max-new-tokens", "max_gen_len", "response_length", "gen_length"])
def test_names_of_lengths(name):
    assert lengths.is_length(name)


@pytest.mark.parametrize(
    "name", ["max_length", "max_prompt_length", "batch_size", "max_seq_len", "tokens", "num_steps"]
)
def test_names_of_other_numbers(name):
    assert not lengths.is_length(name)

"""A reward file is a module like any other: dataclasses, pickle and processes of its own work in it."""

import pickle
import sys
from pathlib import Path

import pytest
from rewards.asking import asked, body, score_all

from assay.config import ConfigError
from assay.rewards.modules import files_of, load_functions, module_name


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_dataclasses_with_annotations_as_text_can_be_made(rewards):
    source = (
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class Answer:\n"
        "    text: str\n"
        "    kind: dataclasses.InitVar[int] = 3\n" + body("return float(Answer(completion).text == answer)")
    )
    reward = rewards(source, head="from __future__ import annotations\n")
    assert score_all(reward, asked("13"))[0].reward == 1.0


def test_what_a_file_defines_can_be_pickled(tmp_path):
    file = tmp_path / "my-reward.py"
    file.write_text("class Answer:\n    pass\ndef score(completion):\n    return 1.0\n")
    (function,) = load_functions([f"{file}:score"])
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__module__ == module_name(file)
    assert function.__module__ not in (*sys.stdlib_module_names, "my-reward")


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_pool_of_processes_works_inside_of_a_reward(rewards, method):
    source = (
        "import multiprocessing\n"
        "def length(text): return float(len(text))\n"
        "pool = None\n"
        "def score(completion):\n"
        "    global pool\n"
        f"    pool = pool or multiprocessing.get_context({method!r}).Pool(2)\n"
        "    return sum(pool.map(length, [completion] * 3))\n"
    )
    assert [score.reward for score in score_all(rewards(source), asked("123", ""))] == [9.0, 0.0]


def test_files_of_one_name_are_two_modules_and_one_file_is_run_once(tmp_path):
    specs = []
    for number in (1, 2):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "reward.py").write_text(
            f"runs = []\ndef score(): return {number}\ndef other(): runs.append(1); return len(runs)\n"
        )
        specs += [f"{directory / 'reward.py'}:score", f"{directory / 'reward.py'}:other"]
    first, first_other, second, second_other = load_functions(specs)
    assert (first(), second()) == (1, 2)
    assert first.__globals__ is first_other.__globals__
    assert (first_other(), first_other(), second_other()) == (1, 2, 1)
    assert files_of([*specs, "assay.rewards.builtin:exact"]) == [specs[0][:-6], specs[2][:-6]]


def test_a_file_that_fails_is_no_module(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text("raise ValueError('not yet')\n")
    with pytest.raises(ValueError, match="not yet"):
        next(load_functions([f"{file}:score"]))
    assert module_name(file) not in sys.modules


def test_the_directory_of_a_file_is_the_last_place_to_look(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text("def score(): pass\n")
    list(load_functions([f"{file}:score"]))
    assert sys.path[-1] == str(tmp_path)


def test_a_module_of_the_working_directory_is_refused_and_not_imported(rewards, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/style.py").write_text("open('imported', 'w')\ndef score(completion): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"'mine\.style:score' names a module, .* file: give mine/style\.py:score$"):
        rewards(functions=["mine.style:score"])
    assert not Path("imported").exists()

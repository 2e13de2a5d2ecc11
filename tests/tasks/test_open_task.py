"""[task] -> Task, and what `assay tasks` prints."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.config import Config, ConfigError, from_mapping
from assay.tasks import BUILT_IN, open_task
from assay.tasks.files import FileTask


def opened(name, reward=None, **options):
    return open_task(from_mapping({"task": {"name": name, "options": options}, "reward": reward or {}}))


def run(*arguments):
    return CliRunner().invoke(app, ["tasks", *arguments])


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n}?", "answer": n} for n in range(50)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_task_poses_problems_and_scores_here(name):
    task = opened(name)
    problem = task.training_problem(5)
    assert problem == opened(name).training_problem(5)
    assert problem.id.endswith("-train-5")
    assert (
        problem.text != open_task(from_mapping({"run": {"seed": 77}, "task": {"name": name}})).training_problem(5).text
    )
    assert task.heldout_problem(5).id.endswith("-heldout-5")
    assert (task.own_reward, task.fingerprint) == ("", "")


def test_the_default_task_sorts_four_to_six_digits():
    assert {len(open_task(Config()).training_problem(index).answer) for index in range(50)} == {4, 5, 6}
    assert {len(opened("sort_digits", max_digits=4).training_problem(index).answer) for index in range(9)} == {4}


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("sort_digit", {}, r"task\.name = 'sort_digit' is not a built-in task .*did you mean 'sort_digits'\?"),
        ("gcd", {}, r"did you mean 'reasoning_gym/gcd'\?"),
        ("reasoning_gym/gcdd", {}, r"reasoning-gym has no family 'gcdd'; did you mean 'gcd'\?"),
        ("nowhere/data.jsonl", {}, r"nowhere/data\.jsonl: there is no such file"),
        ("sort_digits", {"max_digit": 5}, r"unknown option task\.options\.max_digit; did you mean 'max_digits'\?"),
        ("two_words", {"q": 5}, r"unknown option task\.options\.q \(it has min_words\)"),
        ("sort_digits", {"max_digits": 5.5}, r"task\.options\.max_digits = 5\.5 must be a whole number, not float"),
        ("sort_digits", {"min_digits": 0}, r"task\.options\.min_digits = 0 is below its minimum 1"),
        ("addition", {"style": "cot"}, r"task\.options\.style = 'cot' is not one of few_shot, chat"),
        ("sort_digits", {"min_digits": 9}, r"min_digits = 9 exceeds task\.options\.max_digits = 6"),
    ],
)
def test_a_task_that_is_not_there_or_not_so_is_refused_with_the_nearest_name(name, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        opened(name, **options)


def test_a_path_is_a_task_and_its_answer_may_be_absent_only_with_a_reward_of_ones_own(questions, tmp_path):
    assert isinstance(opened(str(questions)), FileTask)
    assert isinstance(opened(str(tmp_path)), FileTask)
    questions.write_text("\n".join(json.dumps({"question": f"Write {n}"}) for n in range(50)))
    assert opened(str(questions), {"functions": ["mine.py:score"]}).training_problem(0).answer == ""
    for functions in ([], ["mine.py:score", "task"], ["exact"], ["last_number"], ["math", "mine.py:score"]):
        with pytest.raises(ConfigError, match="has no field 'answer'"):
            opened(str(questions), {"functions": functions})


def test_without_an_evaluation_no_row_need_be_held_out(questions):
    settings = {"task": {"name": str(questions), "options": {"heldout": 0.0}}}
    with pytest.raises(ConfigError, match="no row is held out"):
        open_task(from_mapping(settings))
    task = open_task(from_mapping({**settings, "evaluate": {"prompts": 0}}))
    with pytest.raises(ConfigError, match="no row is held out"):
        task.heldout_problem(0)


def test_tasks_are_opened_without_torch_and_a_built_in_one_without_the_library():
    code = "import sys, assay.tasks as t; from assay.config import Config; t.open_task(Config()).training_problem(0); "
    code += "print([n for n in ('torch', 'transformers', 'reasoning_gym', 'pyarrow', 'datasets') if n in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_list_names_every_task_and_why_a_family_is_refused():
    shown = run()
    assert shown.exit_code == 0
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line.startswith("  ")}
    assert {"sort_digits", "addition", "json", "two_words", "chain_sum"} <= set(lines)
    assert "eval on the model's text" in lines["n_queens"]
    assert "REFUSED" not in lines["chain_sum"]


def test_one_task_shows_its_options_and_three_problems():
    shown = run("addition", "--set", "task.options.style=chat")
    assert shown.exit_code == 0
    assert 'style = "chat"' in shown.stdout
    assert "digits of each number" in shown.stdout
    assert [line for line in shown.stdout.splitlines() if line.startswith("addition-train-")] == [
        f"addition-train-{index}" for index in range(3)
    ]
    assert shown.stdout.count("What is ") == 4  # once in the meaning of the option
    assert "max_terms = 6" in run("reasoning_gym/chain_sum").stdout


def test_a_file_is_shown_as_it_would_be_read_without_its_control_characters(questions):
    rows = [{"question": f"\x1b[2J{n}\nsecond line", "answer": "\x07"} for n in range(50)]
    questions.write_text("\n".join(map(json.dumps, rows)))
    shown = run(str(questions))
    assert shown.exit_code == 0
    assert "rows to train on" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "\x07" not in shown.stdout
    assert "            second line" in shown.stdout


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ('{"prompt": "a", "answer": 1' + "0" * 399 + "}", "line 1: field 'answer' is a number of more than 300 digits"),
        ('{"prompt": "a", "answer": 1' + "0" * 4999 + "}", "line 1: not valid JSON"),
        ('{"prompt": "a", "answer": 1, "b": ' + "[" * 900 + "]" * 900 + "}", "line 1: field 'b': is nested more"),
    ],
    ids=["400 digits", "5000 digits", "900 levels"],
)
def test_a_row_that_is_too_much_is_refused_in_one_sentence(tmp_path, row, sentence):
    (tmp_path / "bad.jsonl").write_text(row)
    shown = run(str(tmp_path / "bad.jsonl"))
    assert shown.exit_code == 2
    assert f"bad.jsonl: {sentence}" in shown.output


def test_the_last_number_is_shown_as_the_default_of_gsm_symbolic():
    assert 'answer = "last_number"' in run("reasoning_gym/gsm_symbolic").stdout
    assert 'answer = "whole"' in run("reasoning_gym/chain_sum").stdout


def test_bad_input_ends_with_one_sentence_and_code_two(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{")
    shown = run(str(tmp_path / "bad.jsonl"))
    assert shown.exit_code == 2
    assert "bad.jsonl: line 1: not valid JSON" in shown.output
